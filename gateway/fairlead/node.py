"""One gateway node: everything that this process holds, made, joined, started and stopped in order.

The only place where hub, bus and fleet meet; called by the command line and by tests. It opens no port: `app`
serves it. Its loops (beat, keeper, timer_wheel, releases) belong to it and end with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from types import TracebackType
from urllib.parse import urlsplit

from fairlead.bus.doorbell import Doorbell, MembershipChanged
from fairlead.bus.inbox import Inbox
from fairlead.carrier.connection import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.scheduler import ReadBudget, ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConfigError
from fairlead.fleet.commands import Commands
from fairlead.fleet.data_epoch import DataEpochs
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.fleet.node_rows import NodeRows
from fairlead.hub.hub import Hub
from fairlead.routing.agents.index_sweeper import IndexSweeper
from fairlead.routing.agents.lease_release import LeaseReleaser
from fairlead.routing.agents.reconciler import Reconciler
from fairlead.routing.agents.registration import LinkSettings, Registration
from fairlead.routing.agents.removal import AgentRemoval
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.dispatch import Dispatcher
from fairlead.routing.commands.input import InputWriter
from fairlead.routing.commands.results import ResultReader
from fairlead.routing.commands.sweeper import CommandSweeper
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recorder import Recorder
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.followers import Followers
from fairlead.routing.membership.heartbeat import Heartbeat
from fairlead.routing.membership.membership import Membership
from fairlead.routing.membership.node_name import NodeName
from fairlead.routing.observability.link_query import LinkQuery
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.observability.worst_links import WorstLinks
from fairlead.settings import Settings
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.server_check import check_server
from fairlead.telemetry.loop_lag import LoopLag
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.span_exporter import SpanExporter
from fairlead.telemetry.tracing import Tracing
from fairlead.version import __version__
from fairlead.wire.messages import Limits

logger = logging.getLogger(__name__)

FIRST_CONTACT = 30.0
"""Seconds that a starting node waits for Redis."""
SILENCE = 2.5
"""Heartbeats without a sign of life before a link is closed: one lost, one late."""


class Node:
    def __init__(self, settings: Settings, redis_url: str) -> None:
        self.settings = settings
        self.metrics = metrics = Metrics()
        self.membership = membership = Membership(settings.node)
        self.tracing = tracing = Tracing(_exporter(settings), settings.trace_ratio, settings.trace_slow)
        self._telemetry = telemetry = TelemetryRecorder(tracing, metrics, membership)
        self._pulse = LoopLag(metrics)
        self.hub = hub = Hub(settings.pending_limit)
        self.timer_wheel = TimerWheel(silence=settings.heartbeat * SILENCE)
        self.intake = intake = ReadScheduler(
            ReadBudget(settings.message_rate, settings.event_rate, settings.byte_rate, settings.incomplete_limit)
        )
        slow: set[Connection] = set()
        self.connection_context = ConnectionContext(
            self.timer_wheel,
            max_message=settings.message_limit,
            max_buffered=settings.queue_limit,
            intake=intake,
            slow=slow,
        )
        self._store = store = Pipeliner(redis_url)
        store.on_batch = lambda seconds, _count: metrics.redis.observe(seconds)
        self._tasks = tasks = BackgroundTasks()
        eras = DataEpochs(store)
        self.directory = Directory(store)
        records = Commands(store, settings.output_limit)
        due = DeadlineQueue(store)
        self._followers = followers = Followers()
        membership.epoch = secrets.token_hex(6)
        self._inbox = inbox = Inbox(store, redis_url, settings.node, membership.epoch, self._hear)
        completion = Completion(self.directory, due, inbox, metrics, telemetry)
        recorder = Recorder(store, self.directory, records, completion, telemetry, tasks, metrics)
        self.link_query = LinkQuery(self.directory, hub, inbox, followers, membership)
        self.worst_links = WorstLinks(self.directory, hub, inbox, followers, membership)
        self._deliveries = deliveries = CommandDelivery(
            store,
            hub,
            records,
            recorder,
            self.link_query,
            self.worst_links,
            completion,
            telemetry,
            followers,
            membership,
            tasks,
            metrics,
            self.timer_wheel.silence,
        )
        takeover = Takeover(records, deliveries, telemetry)
        self._lease_releaser = lease_releaser = LeaseReleaser(store, self.directory)
        self._reconciler = Reconciler(store, self.directory, hub, takeover, tasks, membership, metrics)
        # A server that was killed may have lost its last moment, and with it claims of ours.
        store.on_connect = membership.reconciliation.request
        load = NodeRows(store)
        self._heartbeat = Heartbeat(
            load,
            eras,
            inbox,
            hub,
            NodeName(load, settings.node, settings.pod_uid),
            membership,
            self._pulse,
            metrics,
            settings.capacity,
            settings.bus_grace,
        )
        self.registration = Registration(
            store, self.directory, hub, inbox, recorder, deliveries, takeover, lease_releaser, membership,
            self.timer_wheel, tasks, telemetry, metrics,
            LinkSettings(
                heartbeat_ms=int(settings.heartbeat * 1000),
                hello_timeout=settings.hello_timeout,
                limits=Limits(
                    message=settings.message_limit, window=settings.window, queue=settings.queue_limit
                ),
                accept_rate=settings.accept_rate,
                bus_grace=settings.bus_grace,
            ),
        )  # fmt: skip
        self.dispatch = Dispatcher(
            store,
            self.directory,
            records,
            eras,
            due,
            inbox,
            completion,
            followers,
            membership,
            metrics,
            tracing,
            int(settings.retention * 1000),
        )
        self.inputs = InputWriter(self.directory, records, due, inbox, membership)
        self.results = ResultReader(store, self.directory, records, inbox, followers, membership)
        self.removal = AgentRemoval(
            self.directory, records, completion, membership, metrics, int(settings.forget_after * 1000)
        )  # fmt: skip
        self._command_sweeper = CommandSweeper(self.directory, records, due, inbox, completion, membership)
        self._index_sweeper = IndexSweeper(self.directory, self.removal, membership, metrics)
        self._loops: list[asyncio.Task[None]] = []
        self._trouble = "not in the fleet yet"
        """Why this node cannot serve, "" when it can."""
        metrics.add_gauge("fairlead_links", "Open links, greeted or not", lambda: hub.links)
        metrics.add_gauge("fairlead_agents", "Agents that this node holds", lambda: len(hub))
        metrics.add_gauge("fairlead_link_capacity", "Links that this node takes", lambda: settings.capacity)
        metrics.add_gauge("fairlead_redis_up", "1 while Redis answers", lambda: float(store.available))
        metrics.add_gauge(
            "fairlead_heartbeat_age_seconds", "Since the last good beat", lambda: membership.since_heartbeat
        )
        metrics.add_gauge("fairlead_draining", "1 while this node empties itself", lambda: float(hub.draining))
        metrics.add_gauge("fairlead_followers", "Callers that wait for results here", lambda: len(followers))
        metrics.add_gauge("fairlead_tasks", "Short tasks of routing that run", lambda: len(tasks))
        metrics.add_gauge("fairlead_drain_remaining", "Agents that a drain has yet to close", lambda: hub.leaving)
        metrics.add_gauge("fairlead_slow_readers", "Agents that do not read as fast as sent to", lambda: len(slow))
        metrics.add_gauge(
            "fairlead_send_queue_bytes",
            "What waits for slow readers",
            lambda: sum(one.buffered() for one in slow),
        )
        metrics.add_gauge(
            "fairlead_links_read_paused", "Links over a budget, which are not read on", lambda: intake.waiting
        )
        metrics.add_counter(
            "fairlead_link_read_pauses_total", "Times that a link was held for its budget", lambda: intake.held
        )
        metrics.add_gauge(
            "fairlead_incomplete_message_bytes", "Received of messages that are not whole", lambda: intake.kept
        )
        metrics.add_gauge("fairlead_pending_bytes", "Received and not stored yet", lambda: hub.totals.pending)
        metrics.add_labelled_gauge(
            "fairlead_redis_backlog", "Calls that wait to be sent to Redis", "priority",
            {priority.label: partial(store.waiting, priority) for priority in Priority},
        )  # fmt: skip
        metrics.add_counter("fairlead_redis_commands_total", "Commands that Redis answered", lambda: store.commands)
        metrics.add_counter("fairlead_redis_errors_total", "Times Redis was lost or silent", lambda: store.trips)
        metrics.add_counter("fairlead_doorbells_rung_total", "Doorbells rung at other nodes", lambda: inbox.rung)
        metrics.add_counter("fairlead_doorbells_heard_total", "Doorbells heard", lambda: inbox.heard)
        metrics.add_counter("fairlead_doorbells_lost_total", "Doorbells that reached no inbox", lambda: inbox.lost)
        if (spans := tracing.exporter) is not None:
            metrics.add_gauge("fairlead_spans_waiting", "Spans that wait for the collector", lambda: len(spans))
        metrics.add_counter("fairlead_spans_exported_total", "Spans that the collector took", lambda: tracing.exported)
        metrics.add_counter("fairlead_spans_dropped_total", "Spans that were lost", lambda: tracing.dropped)

    def _hear(self, doorbells: list[Doorbell]) -> None:
        """The inbox rings before what it rings for could be made: the one circle, closed here."""
        if MembershipChanged() in doorbells:
            self._tasks.spawn(self._heartbeat.muster())
        self._deliveries.hear(doorbells)

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Be part of the fleet, or raise ConfigError when Redis does not answer or is not fit for use, or when another
        process bears this node's name."""
        self.timer_wheel.start()
        self._pulse.start()
        self._store.start()
        try:
            if not await self._store.wait_available(FIRST_CONTACT):
                raise ConfigError(
                    f"{self._store.last_error.message} (waited {FIRST_CONTACT:g} s): is the address right, "
                    "does the server run?"
                )
            await check_server(self._store)
            await self._inbox.start()
            await self._heartbeat.begin()
        except BaseException:
            await self.stop()
            raise
        self._trouble = ""
        for loop in (
            self._heartbeat.run(),
            self._command_sweeper.run(),
            self._index_sweeper.run(),
            self._lease_releaser.run(),
            self._reconciler.run(),
        ):
            self._loops.append(asyncio.create_task(self._watched(loop)))

    async def _watched(self, loop: object) -> None:
        """A loop that ends by an error has a defect: say so loudly, since nobody awaits it."""
        try:
            await loop  # type: ignore[misc]  # any coroutine; the loops above never return
        except asyncio.CancelledError:
            raise
        except BaseException:
            logger.exception("a loop of this node died; the node must be restarted")
            self._trouble = "a loop of this node died: restart it"

    def unready(self) -> str:
        """Why this node should get no new work, "" when it should."""
        if self.hub.draining:
            return "draining"
        if self._trouble:
            return self._trouble
        if self._heartbeat.name_taken:
            return self._heartbeat.name_taken
        if self._inbox.deaf:
            return "the inbox does not hear although Redis answers"
        return ""

    async def drain(self) -> None:
        """Empty this node, paced: agents are told first and closed with 4000 at their slots."""
        count = await self.hub.drain(self.settings.drain_rate, self.settings.drain_timeout)
        logger.info("drained %d agents", count)

    def release_followers(self) -> None:
        """Callers that follow results here are told from where on to ask another node: their streams end at once."""
        self._followers.send_away()

    async def stop(self) -> None:
        """End all loops and leave the fleet. Leases that could not be given up die with this node's row."""
        self.hub.draining = True
        try:
            async with asyncio.timeout(5.0):
                while self._lease_releaser and self._store.available:
                    await self._lease_releaser.release_some()
        except TimeoutError:
            logger.warning("%d leases could not be released in time", len(self._lease_releaser))
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._tasks.aclose(timeout=2.0)
        if self._store.available:
            await self._heartbeat.leave()
        await self._inbox.aclose()
        await self._store.aclose()
        self.timer_wheel.stop()
        self.intake.stop()
        self._pulse.stop()
        self._telemetry.aclose()
        if self.tracing.exporter is not None:
            await self.tracing.exporter.aclose()


def _exporter(settings: Settings) -> SpanExporter | None:
    """The way to the collector; None when no `trace_endpoint` is set, and then nothing is traced."""
    if not settings.trace_endpoint:
        return None
    endpoint = settings.trace_endpoint
    if not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    about = {"service.name": "fairlead", "service.instance.id": settings.node, "service.version": __version__}
    return SpanExporter(endpoint, about)
