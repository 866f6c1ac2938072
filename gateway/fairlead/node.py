"""One gateway node: creates everything that this process holds, joins it, and starts and stops it in order.

Hub, bus, fleet and carrier meet only here and in `routing`. The command line and the tests create a node. It opens no
port: `app` serves it. Its loops belong to it and end with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from fairlead.audit.audit_trail import AuditTrail
from fairlead.audit.records import ISSUERS_CHANGED, LINK_ISSUERS_CHANGED
from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.posters.poster_rights import Posters
from fairlead.bus.inbox import Inbox
from fairlead.bus.sibling_doorbells import SiblingDoorbells
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.account import ReadBudget
from fairlead.carrier.reading.scheduler import ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError
from fairlead.fleet.approvals.approval_requests import ApprovalRequests
from fairlead.fleet.events.dead_letters import DeadLetters
from fairlead.fleet.reports.fact_history import FactHistory
from fairlead.fleet.tokens.service_tokens import ServiceTokens
from fairlead.hub.hub import Hub
from fairlead.identity.certificate_trust import CertificateTrust, TrustChange
from fairlead.oidc.issuer_registry import IssuerRegistry
from fairlead.routing.agents.agent_jwts import AgentJwts
from fairlead.routing.agents.cloned_agents import ClonedAgents
from fairlead.routing.agents.identity import IdentityRegistry
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.data_check import DataCheck
from fairlead.routing.membership.key_types import KeyTypes
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.gauges import (
    watch_identity,
    watch_links,
    watch_moves,
    watch_reading,
    watch_redis,
    watch_tracing,
)
from fairlead.routing.routing import Routing
from fairlead.routing.sinks.sink_keeper import SinkKeeper
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.settings import Settings
from fairlead.store.servers.confirmer import Durability
from fairlead.store.servers.opening import open_store
from fairlead.store.servers.server_check import check_server
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
            self.timer_wheel, max_message=settings.message_limit, max_buffered=settings.queue_limit,
            read_scheduler=self.read_scheduler, slow=slow_readers,
        )  # fmt: skip
        self._store = open_store(redis_url, durability=Durability(settings.durability))
        self._store.on_batch = lambda seconds, _count: metrics.redis.observe(seconds)
        fleet = FleetStore.on(self._store, settings.output_limit, settings.redis_memory_limit)
        self.directory, self.columns, self.node_rows = fleet.directory, fleet.columns, fleet.node_rows
        self.membership = membership = Membership(settings.node, secrets.token_hex(6), settings.revision)
        self.data_check = DataCheck(fleet.data_epochs, membership)
        self.audit_trail = AuditTrail(settings, metrics)
        self.service_tokens, self.approvals = ServiceTokens(self._store), ApprovalRequests(self._store)
        self.authorizer = Authorizer(
            settings.roles, settings.issuers, fleet.directory, fleet.records, self.service_tokens, membership.now,
            membership.unknown_command,
        )  # fmt: skip
        self.identity = IdentityRegistry(settings, self._store, self.hub, membership.now, fleet.tenants)
        self.agent_jwts = AgentJwts(settings.link_issuers, lambda: membership.now() // 1000)
        self._inbox = Inbox(self._store, settings.node, membership.epoch, siblings=siblings)
        self.routing = Routing(
            settings, fleet, self.hub, self._inbox, membership, self.timer_wheel, metrics, self.tracing
        )
        self._connect_identity(fleet)
        self._inbox.on_doorbells = self.routing.doorbells.handle
        self._store.on_wrong_type = KeyTypes(self._store).check
        # A server that was killed may have lost its last writes, and with them claims and commands of this node.
        self._store.on_connect = self.routing.recovery.connected
        self._loops: list[asyncio.Task[None]] = []
        self.sinks = self._event_sinks(settings.event_sinks)
        self.tenants = _tenants(fleet.tenants, self.authorizer, self.hub, metrics)
        self.routing.runs.late.may_run = Posters(self.authorizer).may_run
        self._watch(fleet, slow_readers)

    def _watch(self, fleet: FleetStore, slow_readers: set[Connection]) -> None:
        """Have the metrics read what the parts count."""
        metrics = self.metrics
        self.authorizer.watch(metrics)
        self.identity.watch(metrics)
        watch_links(metrics, self.hub, self.settings.capacity)
        watch_moves(metrics, self.routing.drain)
        watch_reading(metrics, self.read_scheduler, slow_readers)
        watch_redis(metrics, fleet, self._inbox, self.membership)
        watch_tracing(metrics, self.tracing)

    @property
    def fact_history(self) -> FactHistory:
        """The last changes of agents' facts."""
        return FactHistory(self._store)

    def _connect_identity(self, fleet: FleetStore) -> None:
        """Have ends of commands, other roles, links that are refused and copies of agents told, and links end with
        their JWTs."""
        log, registration = self.audit_trail.log, self.routing.registration
        if log is not None:
            self.routing.telemetry.on_command_end = self.audit_trail.command_ended
            for action, registry in (
                (ISSUERS_CHANGED, self.authorizer.users.issuers), (LINK_ISSUERS_CHANGED, self.agent_jwts.issuers),
            ):  # fmt: skip
                registry.on_reload = partial(self._issuers_changed, action, registry)
        self.authorizer.policy_watch.on_change = self._policy_changed
        registration.refusals.log = self.routing.schedule_keeper.log = self.routing.runs.late.log = log
        self.identity.record(log)
        registration.cloned = ClonedAgents(
            fleet, self.identity.revocations, log, self.routing.tasks, self.membership.now, self.metrics
        )
        self.membership.on_directive = lambda what, detail: self.audit_trail.directive(what, detail, len(self.hub))
        self.routing.disconnector.on_directive = self.audit_trail.directive
        expiring, refusals = registration.expiring, registration.refusals
        expiring.refusal = self.agent_jwts.refusal
        self.agent_jwts.watch(self.metrics)
        expiring.on_refused = self.audit_trail.links_closed
        certified, of_tenants = registration.certified, self.routing.tenant_links
        watch_identity(self.metrics, expiring, lambda: certified.closed + of_tenants.closed, lambda: refusals.count)

    def _policy_changed(self) -> None:
        """Other roles hold, or other tenants are declared."""
        watch = self.authorizer.policy_watch
        self.audit_trail.roles_changed(watch.digest, len(watch.policy.roles))
        removed = self.routing.tenant_links.close_removed(watch.policy.declares, self.audit_trail.links_closed)
        self.routing.tasks.spawn(removed)

    def _event_sinks(self, path: Path | None) -> SinkKeeper:
        sinks = SinkKeeper(
            path, self.routing.events.readers, DeadLetters(self._store), self.authorizer.traits, self.membership,
            self.metrics,
        )  # fmt: skip
        sinks.on_change, sinks.declares = self.audit_trail.sinks_changed, self.authorizer.declares
        return sinks

    def _issuers_changed(self, action: str, issuers: IssuerRegistry) -> None:
        self.audit_trail.issuers_changed(action, (source.issuer.url for source in issuers.sources))

    async def trust_changed(self, change: TrustChange, trust: CertificateTrust) -> None:
        """Close the links whose client certificate is not valid by what the files say now, and tell it."""
        closed = await self.routing.registration.certified.apply(change)
        detail = (
            f"{len(trust.authorities)} authorities, {change.gone} removed; {trust.revoked_count} revoked certificates"
        )
        level = logging.WARNING if closed else logging.INFO
        logger.log(level, "read the authorities of clients again: %s; closed %d links", detail, closed)
        self.audit_trail.client_authorities_changed(trust.digest.hex(), detail, closed)

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
        self.agent_jwts.issuers.load()
        self.sinks.load()
        self.audit_trail.open()
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
            await check_server(self._store, Durability(self.settings.durability))
            await self._inbox.start()
            await self.routing.heartbeat.join()
        except BaseException:
            await self.stop()
            raise
        self.routing.readiness.problem = ""
        loops = [
            *self.routing.loops(), *self.authorizer.loops(), *self.identity.loops(), *self.audit_trail.loops(),
            self.agent_jwts.issuers.run(), self.sinks.run(),
        ]  # fmt: skip
        self._loops = [asyncio.create_task(self._watched(loop)) for loop in loops]
        self.audit_trail.node_started(self.authorizer.policy_watch.digest)

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

    def redis_problem(self) -> str:
        """What is wrong with Redis, in words; "" if nothing is."""
        return self.routing.readiness.redis_problem()

    def begin_drain(self) -> None:
        """Take no more links, and let the other nodes know."""
        if not self.hub.draining:
            self.audit_trail.node_draining(len(self.hub))
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
        await self.routing.registration.refusals.tasks.aclose()
        if self.routing.registration.cloned is not None:
            self.routing.registration.cloned.aclose()
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
        await self.audit_trail.aclose()


def _tenants(limits: TenantLimits, authorizer: Authorizer, hub: Hub, metrics: Metrics) -> TenantLimits:
    """The quotas of tenants, which the file of roles declares."""
    limits.declared = lambda: authorizer.policy.tenants
    limits.watch(metrics, lambda: [session.agent for session in hub])
    return limits


def _exporter(settings: Settings) -> SpanExporter | None:
    """Exports spans to the collector; None if no `trace_endpoint` is set, and then nothing is traced."""
    if not settings.trace_endpoint:
        return None
    endpoint = settings.trace_endpoint
    if not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    about = {"service.name": "fairlead", "service.instance.id": settings.node, "service.version": __version__}
    return SpanExporter(endpoint, about)
