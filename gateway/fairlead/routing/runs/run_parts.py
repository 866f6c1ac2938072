"""All parts of runs, joined. `Routing` creates one; the node runs the loop of its keeper."""

from __future__ import annotations

from fairlead.bus.inbox import Inbox
from fairlead.fleet.runs.runs import Runs
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.dispatch import Dispatcher
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.late_agents import LateAgents
from fairlead.routing.runs.run_driver import RunServices
from fairlead.routing.runs.run_keeper import RunKeeper
from fairlead.routing.runs.run_results import RunResults
from fairlead.routing.runs.run_service import RunService
from fairlead.routing.runs.selection import AgentSelection
from fairlead.routing.runs.target_commands import TargetCommands
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing


class RunParts:
    def __init__(
        self,
        fleet: FleetStore,
        dispatch: Dispatcher,
        inbox: Inbox,
        completion: Completion,
        membership: Membership,
        followers: Followers,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        runs, retention = Runs(fleet.store), dispatch.retention
        commands = TargetCommands(fleet, inbox, completion, membership, metrics, tracing, retention)
        self.selection = AgentSelection(fleet.directory, fleet.columns)
        self.late = LateAgents(self.selection, membership)
        services = RunServices(
            fleet.store, runs, commands, dispatch, followers, membership, fleet.memory, inbox, fleet.tenants, self.late
        )
        self.keeper = RunKeeper(services, metrics)
        self.service = RunService(runs, fleet, self.keeper, inbox, membership, retention.default_ms)
        self.results = RunResults(fleet, runs, followers, membership)
