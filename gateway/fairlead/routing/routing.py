"""All parts of `routing`, created from the settings and joined. The node creates one, runs its loops and closes it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fairlead.bus.inbox import Inbox
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.fleet.commands import Commands
from fairlead.fleet.contents.content_store import Contents
from fairlead.fleet.schedules.schedules import Schedules
from fairlead.hub.hub import Hub
from fairlead.routing.agents.index_sweeper import IndexSweeper
from fairlead.routing.agents.lease_release import LeaseReleaser
from fairlead.routing.agents.link_handler import LinkHandler
from fairlead.routing.agents.reconciler import Reconciler
from fairlead.routing.agents.registration import LinkSettings, Registration
from fairlead.routing.agents.removal import AgentRemoval
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.dispatch import Dispatcher
from fairlead.routing.commands.input import InputWriter
from fairlead.routing.commands.open_commands import OpenCommands
from fairlead.routing.commands.results import ResultReader
from fairlead.routing.commands.sweeper import CommandSweeper
from fairlead.routing.contents.content_cache import ContentCache
from fairlead.routing.contents.content_keeper import ContentKeeper
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recording.recorder import Recorder
from fairlead.routing.delivery.taken_offers import TakenOffers
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.doorbells import DoorbellHandler
from fairlead.routing.events.event_parts import EventParts
from fairlead.routing.failover.recovery import Recovery
from fairlead.routing.failover.repeated_steps import RepeatedSteps
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.heartbeat import Heartbeat
from fairlead.routing.membership.load_report import LoadReport
from fairlead.routing.membership.membership import Membership
from fairlead.routing.membership.node_name import NodeName
from fairlead.routing.membership.readiness import Readiness
from fairlead.routing.moves.disconnector import Disconnector
from fairlead.routing.moves.drain import NodeDrain
from fairlead.routing.moves.move_budget import MoveBudget
from fairlead.routing.moves.rebalancer import Rebalancer
from fairlead.routing.moves.tenant_links import TenantLinks
from fairlead.routing.observability.gauges import watch_routing
from fairlead.routing.observability.link_query import LinkQuery
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.observability.worst_links import WorstLinks
from fairlead.routing.retention.result_dropper import ResultDropper
from fairlead.routing.retention.retention import Retention
from fairlead.routing.runs.run_parts import RunParts
from fairlead.routing.schedules.schedule_keeper import ScheduleKeeper
from fairlead.settings import Settings
from fairlead.telemetry.loop_lag import LoopLag
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing
from fairlead.wire.messages import Limits


class Routing:
    def __init__(
        self, settings: Settings, fleet: FleetStore, hub: Hub, inbox: Inbox, membership: Membership,
        timer_wheel: TimerWheel, metrics: Metrics, tracing: Tracing,
    ) -> None:  # fmt: skip
        self._fleet, directory, records = fleet, fleet.directory, fleet.records
        self.tasks, self.followers = tasks, followers = BackgroundTasks(), Followers()
        self.telemetry = telemetry = TelemetryRecorder(tracing, metrics, membership)
        self.link_query = LinkQuery(directory, inbox, followers, membership)
        self.worst_links = WorstLinks(directory, hub, inbox, followers, membership)
        completion = Completion(directory, fleet.deadlines, inbox, metrics, telemetry, fleet.tenants)
        kept, forget_ms = _retention(settings), int(settings.forget_after * 1000)
        self.dispatch = Dispatcher(fleet, inbox, completion, followers, membership, metrics, tracing, kept)
        self.runs = RunParts(fleet, self.dispatch, inbox, completion, membership, followers, metrics, tracing)
        self.inputs, self.open_commands = InputWriter(fleet, inbox, membership), OpenCommands(fleet)
        self.events = EventParts(fleet, followers, membership, metrics)
        self.memory, self.schedules, self.tenant_links = fleet.memory, Schedules(fleet.store), TenantLinks(hub)
        self.results, silence = ResultReader(fleet, inbox, followers, membership), timer_wheel.silence
        self.removal = AgentRemoval(fleet, completion, membership, metrics, forget_ms)
        self.terminals = terminals = _terminals(settings, records, metrics)
        self.contents, cache = _contents(fleet, metrics, membership)
        self.schedule_keeper = ScheduleKeeper(
            self.schedules, self.runs.service, self.runs.late, self.contents, membership, metrics
        )
        offers = TakenOffers(fleet, inbox, membership, tasks)
        delivery = CommandDelivery(fleet, offers, cache, completion, terminals, telemetry, tasks, silence)
        recorder = Recorder(fleet, completion, terminals, telemetry, tasks, metrics)
        takeover, self.lease_releaser = Takeover(fleet, delivery, telemetry), LeaseReleaser(fleet.store, directory)
        self.registration = Registration(
            fleet, hub, inbox, takeover, self.lease_releaser, membership, telemetry, _link_settings(settings)
        )
        self.link_handler = LinkHandler(
            hub, timer_wheel.timeout_queue(settings.hello_timeout), self.registration, recorder, delivery,
            self.lease_releaser, telemetry, tasks,
        )  # fmt: skip
        self.loop_lag, self.readiness = LoopLag(metrics), Readiness(hub, inbox, membership, fleet)
        self.heartbeat = Heartbeat(
            fleet, inbox, hub, NodeName(fleet.node_rows, settings.node, settings.pod_uid), membership,
            LoadReport(settings, hub, self.readiness, telemetry.traffic, self.loop_lag), metrics, settings.bus_grace,
        )  # fmt: skip
        self.doorbells = DoorbellHandler(
            hub, delivery, recorder, followers, self.link_query, self.worst_links, self.heartbeat, tasks
        )
        self._command_sweeper = CommandSweeper(fleet, inbox, completion, membership)
        self._index_sweeper = IndexSweeper(directory, fleet.column_builder, self.removal, membership, metrics)
        self._result_dropper = ResultDropper(fleet, membership, settings.results_limit, metrics)
        self._reconciler = Reconciler(fleet, hub, takeover, tasks, membership, metrics)
        self.recovery = _recovery(fleet, hub, RepeatedSteps(fleet, completion, delivery, membership), self.heartbeat)
        self.drain, self._rebalancer, self.disconnector = _movers(settings, fleet, hub, membership, metrics)
        watch_routing(metrics, membership, followers, tasks, self.events.feeds.count)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The loops that run as long as the node is in the fleet. None of them returns."""
        return (
            self.heartbeat.run(),
            self._fleet.memory.run(),
            *self.events.loops(),
            self._command_sweeper.run(),
            self._index_sweeper.run(),
            self._result_dropper.run(),
            self.lease_releaser.run(),
            self._reconciler.run(),
            self.recovery.run(),
            self._rebalancer.run(),
            self.disconnector.run(),
            self.registration.expiring.run(),
            self.registration.changed_facts.run(),
            self.runs.keeper.run(),
            self.schedule_keeper.run(),
        )


def _movers(
    settings: Settings, fleet: FleetStore, hub: Hub, membership: Membership, metrics: Metrics
) -> tuple[NodeDrain, Rebalancer, Disconnector]:
    """The parts that move agents. They share this node's part of the budget."""
    budget = MoveBudget(fleet, membership, metrics, settings.drain_rate)
    drain = NodeDrain(hub, budget, settings.drain_timeout)
    rebalancer = Rebalancer(fleet, hub, budget, membership, settings.capacity)
    return drain, rebalancer, Disconnector(fleet, hub, budget, membership)


def _retention(settings: Settings) -> Retention:
    return Retention.parse(settings.retention, settings.method_retention, settings.method_results_limit)


def _recovery(fleet: FleetStore, hub: Hub, steps: RepeatedSteps, heartbeat: Heartbeat) -> Recovery:
    recovery = Recovery(fleet, hub, heartbeat.membership, steps, heartbeat.metrics)
    heartbeat.on_servers = recovery.seen
    return recovery


def _terminals(settings: Settings, records: Commands, metrics: Metrics) -> TerminalRecorder:
    terminals = TerminalRecorder(settings.terminal_recordings, settings.terminal_recording_size, records)
    metrics.add_counter(
        "fairlead_terminal_recordings_total", "Recordings of terminals that began", lambda: terminals.started
    )
    metrics.add_counter(
        "fairlead_terminal_recording_failures_total",
        "Terminals that were closed because their recording could not be written",
        lambda: terminals.failures,
    )
    metrics.add_counter(
        "fairlead_terminal_recordings_cut_total",
        "Recordings of terminals that were cut at terminal_recording_size",
        lambda: terminals.cut,
    )
    return terminals


def _contents(fleet: FleetStore, metrics: Metrics, membership: Membership) -> tuple[ContentKeeper, ContentCache]:
    contents = Contents(fleet.store)
    return ContentKeeper(contents, fleet.memory, membership.now), ContentCache(contents, metrics)


def _link_settings(settings: Settings) -> LinkSettings:
    return LinkSettings(
        heartbeat_ms=int(settings.heartbeat * 1000),
        limits=Limits(message=settings.message_limit, window=settings.window, queue=settings.queue_limit),
        accept_rate=settings.planned_accept_rate,
        bus_grace=settings.bus_grace,
        revoke_cloned=settings.clone_policy == "hold",
    )
