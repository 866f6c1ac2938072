"""One gateway node: creates everything that this process holds, joins it, and starts and stops it in order.

Hub, bus, fleet and carrier meet only here and in `routing`. The command line and the tests create a node. It opens no
port: `app` serves it. Its loops belong to it and end with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from fairlead.audit.log_writer import AuditLogWriter
from fairlead.authorization.authorizer import Authorizer
from fairlead.bus.inbox import Inbox
from fairlead.bus.sibling_doorbells import SiblingDoorbells
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.account import ReadBudget
from fairlead.carrier.reading.scheduler import ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError
from fairlead.fleet.tokens.service_tokens import ServiceTokens
from fairlead.hub.hub import Hub
from fairlead.routing.agents.identity import IdentityRegistry
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.data_check import DataCheck
from fairlead.routing.membership.key_types import KeyTypes
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.gauges import watch_links, watch_moves, watch_reading, watch_redis, watch_tracing
from fairlead.routing.routing import Routing
from fairlead.settings import Settings
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.server_check import check_server
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.span_exporter import SpanExporter
from fairlead.telemetry.tracing import Tracing
from fairlead.version import __version__

logger = logging.getLogger(__name__)

FIRST_CONTACT = 30.0
"""Seconds that a starting node waits for Redis."""
SILENCE = 2.5
"""Heartbeats without a sign of life before a link is closed: one lost and one late."""


class Node:
    def __init__(self, settings: Settings, redis_url: str, siblings: SiblingDoorbells | None = None) -> None:
        """`siblings` are the other workers of this node's supervisor."""
        self.settings = settings
        self.metrics = metrics = Metrics()
        self.tracing = Tracing(_exporter(settings), settings.trace_ratio, settings.trace_slow)
        self.hub = Hub(settings.pending_limit)
        self.timer_wheel = TimerWheel(silence=settings.heartbeat * SILENCE)
        self.read_scheduler = ReadScheduler(
            ReadBudget(settings.message_rate, settings.event_rate, settings.byte_rate, settings.incomplete_limit)
        )
        slow_readers: set[Connection] = set()
        self.connection_context = ConnectionContext(
            self.timer_wheel,
            max_message=settings.message_limit,
            max_buffered=settings.queue_limit,
            read_scheduler=self.read_scheduler,
            slow=slow_readers,
        )
        self._store = Pipeliner(redis_url)
        self._store.on_batch = lambda seconds, _count: metrics.redis.observe(seconds)
        fleet = FleetStore.on(self._store, settings.output_limit, settings.redis_memory_limit)
        self.directory, self.node_rows = fleet.directory, fleet.node_rows
        self.membership = membership = Membership(settings.node, secrets.token_hex(6), settings.revision)
        self.data_check = DataCheck(fleet.data_epochs, membership)
        self.audit_log = _audit_log(settings, metrics)
        self.service_tokens = ServiceTokens(self._store)
        self.authorizer = Authorizer(
            settings.roles, settings.issuers, fleet.directory, fleet.records, self.service_tokens, membership.now,
            membership.unknown_command,
        )  # fmt: skip
        self.identity = IdentityRegistry(settings, self._store, self.hub, membership.now)
        self._inbox = Inbox(self._store, redis_url, settings.node, membership.epoch, siblings=siblings)
        self.routing = Routing(
            settings, fleet, self.hub, self._inbox, membership, self.timer_wheel, metrics, self.tracing
        )
        self._inbox.on_doorbells = self.routing.doorbells.handle
        self._store.on_wrong_type = KeyTypes(self._store).check
        # A server that was killed may have lost its last writes, and with them claims of this node.
        self._store.on_connect = membership.reconciliation.request
        self._loops: list[asyncio.Task[None]] = []
        self.authorizer.watch(metrics)
        self.identity.watch(metrics)
        watch_links(metrics, self.hub, settings.capacity)
        watch_moves(metrics, self.routing.drain)
        watch_reading(metrics, self.read_scheduler, slow_readers)
        watch_redis(metrics, self._store, fleet.memory, self._inbox)
        watch_tracing(metrics, self.tracing)

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the fleet. Raises ConfigError if the file of roles or of issuers cannot be used, Redis does not
        answer or is not fit for use, or if another process has this node's name."""
        self.authorizer.load()
        if self.audit_log is not None:
            self.audit_log.open()
        self.routing.terminals.open()
        self.timer_wheel.start()
        self.routing.loop_lag.start()
        self._store.start()
        try:
            if not await self._store.wait_available(FIRST_CONTACT):
                raise ConfigError(
                    f"{self._store.last_error.message} (waited {FIRST_CONTACT:g} s; check the address, and that the "
                    "server runs)"
                )
            await check_server(self._store)
            await self._inbox.start()
            await self.routing.heartbeat.join()
        except BaseException:
            await self.stop()
            raise
        self.routing.readiness.problem = ""
        loops = [*self.routing.loops(), *self.authorizer.loops(), *self.identity.loops()]
        if self.audit_log is not None:
            loops.append(self.audit_log.run())
        self._loops = [asyncio.create_task(self._watched(loop)) for loop in loops]

    async def _watched(self, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop. An error that ends it is a defect. It is logged and makes the node unready, because nobody awaits
        the loop."""
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except BaseException:
            logger.exception("a loop of this node has failed: the node must be restarted")
            self.routing.readiness.problem = "a loop of this node has failed: restart it"

    def unready(self) -> str:
        """Why this node should get no new links; "" if it should."""
        return self.routing.readiness.unready()

    def begin_drain(self) -> None:
        """Take no more links, and let the other nodes know."""
        self.hub.draining = True
        self.routing.heartbeat.send_soon()

    async def drain(self) -> None:
        """Move all agents to other nodes, at the pace that the fleet's budget of moves allows."""
        count = await self.routing.drain.run()
        logger.info("drained %d agents", count)

    def release_followers(self) -> None:
        """End the streams of all callers that follow results here; each is told from where to go on at another node."""
        self.routing.followers.release()

    async def stop(self) -> None:
        """End all loops and leave the fleet. Leases that could not be released expire with this node's row."""
        self.hub.draining = True
        releaser = self.routing.lease_releaser
        try:
            async with asyncio.timeout(5.0):
                while releaser and self._store.available:
                    await releaser.release_some()
        except TimeoutError:
            logger.warning("%d leases could not be released in time", len(releaser))
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.routing.tasks.aclose(timeout=2.0)
        if self._store.available:
            await self.routing.heartbeat.leave()
        await self._inbox.aclose()
        await self._store.aclose()
        self.timer_wheel.stop()
        self.read_scheduler.stop()
        self.routing.loop_lag.stop()
        self.routing.telemetry.aclose()
        if self.tracing.exporter is not None:
            await self.tracing.exporter.aclose()
        if self.audit_log is not None:
            self.audit_log.close()


def _audit_log(settings: Settings, metrics: Metrics) -> AuditLogWriter | None:
    """Writes the audit log; None if no `audit_log` is set."""
    if settings.audit_log is None:
        return None
    log = AuditLogWriter(settings.audit_log, settings.node, settings.audit_fsync, settings.audit_size)
    metrics.add_counter("fairlead_audit_lines_total", "Lines written to the audit log", lambda: log.lines)
    metrics.add_counter(
        "fairlead_audit_failures_total",
        "Events refused because the audit log could not be written",
        lambda: log.failures,
    )
    return log


def _exporter(settings: Settings) -> SpanExporter | None:
    """Exports spans to the collector; None if no `trace_endpoint` is set, and then nothing is traced."""
    if not settings.trace_endpoint:
        return None
    endpoint = settings.trace_endpoint
    if not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    about = {"service.name": "fairlead", "service.instance.id": settings.node, "service.version": __version__}
    return SpanExporter(endpoint, about)
