"""Everything that the fleet keeps in Redis: the client and the parts of `fleet` that use it."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet.batches.command_batches import CommandBatches
from fairlead.fleet.columns.agent_columns import AgentColumns
from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.commands import Commands
from fairlead.fleet.data_epoch import DataEpochs
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directives.disconnect import Disconnects
from fairlead.fleet.directives.preferred_revision import PreferredRevisions
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.fleet.directory import Directory
from fairlead.fleet.events.event_log import EventLog
from fairlead.fleet.failover.repairs import Repairs
from fairlead.fleet.failover.serving_server import ServingServer
from fairlead.fleet.moves.move_bucket import MoveBucket
from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.retention.kept_results import KeptResults
from fairlead.fleet.tenants.tenant_use import TenantUse
from fairlead.routing.failover_gate import FailoverGate
from fairlead.routing.store_memory import StoreMemory
from fairlead.routing.tenant_limits import TenantLimits
from fairlead.store.store import Store


@dataclass(frozen=True, slots=True)
class FleetStore:
    """`store` is the client, which must be started. The others hold agents, the columns of their facts and labels,
    commands, many commands at once, events, deadlines, nodes, the budget of moves, what the operator tells all nodes,
    how full Redis is, what a failover needs, what tenants may have, and which results are kept of ended commands."""

    store: Store
    directory: Directory
    columns: AgentColumns
    column_builder: ColumnBuilder
    records: Commands
    batches: CommandBatches
    events: EventLog
    deadlines: DeadlineQueue
    node_rows: NodeRows
    data_epochs: DataEpochs
    preferred_revisions: PreferredRevisions
    moves: MoveBucket
    rebalance_targets: RebalanceTargets
    disconnects: Disconnects
    memory: StoreMemory
    repairs: Repairs
    serving_server: ServingServer
    gate: FailoverGate
    tenants: TenantLimits
    kept_results: KeptResults

    @classmethod
    def on(cls, store: Store, output_limit: int, memory_limit: int) -> FleetStore:
        """The parts that use `store`. `output_limit` is the number of bytes of results that are kept for one
        command, `memory_limit` that of all that Redis may hold (see `StoreMemory`)."""
        directory = Directory(store)
        records, gate = Commands(store, output_limit), FailoverGate(store.owner, store.owners)
        records.recent.settled = lambda: not gate.closed and all(store.owners().values())
        return cls(
            store,
            directory,
            AgentColumns(store, directory),
            ColumnBuilder(store, directory),
            records,
            CommandBatches(store, output_limit, records.recent),
            EventLog(store),
            DeadlineQueue(store),
            NodeRows(store),
            DataEpochs(store),
            PreferredRevisions(store),
            MoveBucket(store),
            RebalanceTargets(store),
            Disconnects(store),
            StoreMemory(store, memory_limit),
            Repairs(store, output_limit),
            ServingServer(store),
            gate,
            TenantLimits(TenantUse(store)),
            KeptResults(store),
        )
