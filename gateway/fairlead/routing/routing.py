"""All parts of `routing`, created from the settings and joined. The node creates one, runs its loops and closes it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from fairlead.bus.inbox import Inbox
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.fleet.commands import Commands
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
from fairlead.routing.commands.results import ResultReader
from fairlead.routing.commands.sweeper import CommandSweeper
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.delivery.recorder import Recorder
from fairlead.routing.delivery.takeover import Takeover
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.doorbells import DoorbellHandler
from fairlead.routing.event_feed import EventFeed
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
from fairlead.routing.observability.gauges import watch_routing
from fairlead.routing.observability.link_query import LinkQuery
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.observability.worst_links import WorstLinks
from fairlead.routing.runs.run_parts import RunParts
from fairlead.settings import Settings
from fairlead.telemetry.loop_lag import LoopLag
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing
from fairlead.wire.messages import Limits


class Routing:
    def __init__(
        self,
        settings: Settings,
        fleet: FleetStore,
        hub: Hub,
        inbox: Inbox,
        membership: Membership,
        timer_wheel: TimerWheel,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._fleet, directory, records, deadlines = fleet, fleet.directory, fleet.records, fleet.deadlines
        self.tasks, self.followers = tasks, followers = BackgroundTasks(), Followers()
        self.telemetry = telemetry = TelemetryRecorder(tracing, metrics, membership)
        self.link_query = LinkQuery(directory, inbox, followers, membership)
        self.worst_links = WorstLinks(directory, hub, inbox, followers, membership)
        completion = Completion(directory, deadlines, inbox, metrics, telemetry)
        self.dispatch = Dispatcher(
            fleet, inbox, completion, followers, membership, metrics, tracing, int(settings.retention * 1000)
        )
        self.runs = RunParts(fleet, self.dispatch, inbox, completion, membership, followers, metrics, tracing)
        self.inputs = InputWriter(fleet, inbox, membership)
        self.event_feed = EventFeed(fleet.store, fleet.events, followers)
        self.results = ResultReader(fleet, inbox, followers, membership)
        forget_ms = int(settings.forget_after * 1000)
        self.removal = AgentRemoval(directory, records, fleet.events, completion, membership, metrics, forget_ms)
        self.terminals = terminals = _terminals(settings, records, metrics)
        delivery = CommandDelivery(fleet, completion, terminals, telemetry, membership, tasks, timer_wheel.silence)
        recorder = Recorder(fleet, completion, terminals, telemetry, tasks, metrics)
        takeover, self.lease_releaser = Takeover(records, delivery, telemetry), LeaseReleaser(fleet.store, directory)
        self.registration = Registration(
            fleet, hub, inbox, takeover, self.lease_releaser, membership, telemetry, _link_settings(settings)
        )
        self.link_handler = LinkHandler(
            hub, timer_wheel.timeout_queue(settings.hello_timeout), self.registration, recorder, delivery,
            self.lease_releaser, telemetry, tasks,
        )  # fmt: skip
        self.loop_lag, self.readiness = LoopLag(metrics), Readiness(hub, inbox, membership)
        self.heartbeat = Heartbeat(
            fleet, inbox, hub, NodeName(fleet.node_rows, settings.node, settings.pod_uid), membership,
            LoadReport(settings, hub, self.readiness, telemetry.traffic, self.loop_lag), metrics, settings.bus_grace,
        )  # fmt: skip
        self.doorbells = DoorbellHandler(
            hub, delivery, recorder, followers, self.link_query, self.worst_links, self.heartbeat, tasks
        )
        self._command_sweeper = CommandSweeper(directory, records, deadlines, inbox, completion, membership)
        self._index_sweeper = IndexSweeper(directory, self.removal, membership, metrics)
        self._reconciler = Reconciler(fleet, hub, takeover, tasks, membership, metrics)
        self.drain, self._rebalancer, self._disconnector = _movers(settings, fleet, hub, membership, metrics)
        watch_routing(metrics, membership, followers, tasks, self.event_feed.count)

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The loops that run as long as the node is in the fleet. None of them returns."""
        return (
            self.heartbeat.run(),
            self._fleet.memory.run(),
            self.event_feed.run(),
            self._command_sweeper.run(),
            self._index_sweeper.run(),
            self.lease_releaser.run(),
            self._reconciler.run(),
            self._rebalancer.run(),
            self._disconnector.run(),
            self.runs.keeper.run(),
        )


def _movers(
    settings: Settings, fleet: FleetStore, hub: Hub, membership: Membership, metrics: Metrics
) -> tuple[NodeDrain, Rebalancer, Disconnector]:
    """The parts that move agents. They share this node's part of the budget."""
    budget = MoveBudget(fleet, membership, metrics, settings.drain_rate)
    drain = NodeDrain(hub, budget, settings.drain_timeout)
    rebalancer = Rebalancer(fleet, hub, budget, membership, settings.capacity)
    return drain, rebalancer, Disconnector(fleet, hub, budget, membership)


def _terminals(settings: Settings, records: Commands, metrics: Metrics) -> TerminalRecorder:
    terminals = TerminalRecorder(settings.terminal_recordings, records)
    metrics.add_counter(
        "fairlead_terminal_recordings_total", "Recordings of terminals that began", lambda: terminals.started
    )
    metrics.add_counter(
        "fairlead_terminal_recording_failures_total",
        "Terminals that were closed because their recording could not be written",
        lambda: terminals.failures,
    )
    return terminals


def _link_settings(settings: Settings) -> LinkSettings:
    return LinkSettings(
        heartbeat_ms=int(settings.heartbeat * 1000),
        limits=Limits(message=settings.message_limit, window=settings.window, queue=settings.queue_limit),
        accept_rate=settings.planned_accept_rate,
        bus_grace=settings.bus_grace,
    )
