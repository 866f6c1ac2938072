"""Everything that the fleet keeps in Redis: the client and the parts of `fleet` that use it."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet.commands import Commands
from fairlead.fleet.data_epoch import DataEpochs
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directives.disconnect import Disconnects
from fairlead.fleet.directives.preferred_revision import PreferredRevisions
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.fleet.directory import Directory
from fairlead.fleet.events.event_log import EventLog
from fairlead.fleet.moves.move_bucket import MoveBucket
from fairlead.fleet.node_rows import NodeRows
from fairlead.routing.store_memory import StoreMemory
from fairlead.store.pipeliner import Pipeliner


@dataclass(frozen=True, slots=True)
class FleetStore:
    """`store` is the client, which must be started. The others hold agents, commands, events, deadlines, nodes, the
    budget of moves, what the operator tells all nodes, and how full Redis is."""

    store: Pipeliner
    directory: Directory
    records: Commands
    events: EventLog
    deadlines: DeadlineQueue
    node_rows: NodeRows
    data_epochs: DataEpochs
    preferred_revisions: PreferredRevisions
    moves: MoveBucket
    rebalance_targets: RebalanceTargets
    disconnects: Disconnects
    memory: StoreMemory

    @classmethod
    def on(cls, store: Pipeliner, output_limit: int, memory_limit: int) -> FleetStore:
        """The parts that use `store`. `output_limit` is the number of bytes of results that are kept for one
        command, `memory_limit` that of all that Redis may hold (see `StoreMemory`)."""
        return cls(
            store,
            Directory(store),
            Commands(store, output_limit),
            EventLog(store),
            DeadlineQueue(store),
            NodeRows(store),
            DataEpochs(store),
            PreferredRevisions(store),
            MoveBucket(store),
            RebalanceTargets(store),
            Disconnects(store),
            StoreMemory(store, memory_limit),
        )
