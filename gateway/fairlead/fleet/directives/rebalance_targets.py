"""How many links each node should keep at most while a rebalance runs.

The operator writes them in every pass of a rebalance, and each node reads its own with its heartbeat. They expire, so
that a rebalance stops when the operator does. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.fleet import lua, schema
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer


class RebalanceTargets:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    async def write(self, targets: Mapping[str, int]) -> None:
        """Replace the targets of all nodes with `targets`; none ends the rebalance."""
        flat = [item for pair in targets.items() for item in pair]
        await self._store.run(lua.SET_REBALANCE_TARGETS, (schema.REBALANCE,), (schema.REBALANCE_MS, *flat))

    def read(self, node: str) -> Answer[int | None]:
        """Links that `node` should keep at most; None while no rebalance runs."""

        def parse(reply: Reply) -> int | None:
            return None if reply is None else integer(reply)

        return Answer(self._store.submit("HGET", schema.REBALANCE, node, priority=Priority.CONTROL), parse)
