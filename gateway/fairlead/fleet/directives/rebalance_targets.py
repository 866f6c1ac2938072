"""How many links each node should keep at most while a rebalance runs, and from how many on it takes no new ones.

The operator writes them in every pass of a rebalance, and each node reads its own with its heartbeat. They expire, so
that a rebalance stops when the operator does. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.fleet import lua, schema
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items
from fairlead.store.store import Store

REBALANCE_MS = 30_000
"""How long targets of a rebalance hold: three passes of the operator."""


class RebalanceTargets:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, targets: Mapping[str, RebalanceTarget]) -> None:
        """Replace the targets of all nodes with `targets`; none ends the rebalance."""
        fields: list[str | int] = []
        for node, target in targets.items():
            fields += (node, target.keep)
            if target.enough is not None:
                fields += (_enough_field(node), target.enough)
        await self._store.run(lua.SET_REBALANCE_TARGETS, (schema.REBALANCE,), (REBALANCE_MS, *fields))

    def read(self, node: str) -> Answer[RebalanceTarget | None]:
        """What is asked of `node`; None while no rebalance runs."""

        def parse(reply: Reply) -> RebalanceTarget | None:
            keep, enough = items(reply)
            if keep is None:
                return None
            return RebalanceTarget(integer(keep), None if enough is None else integer(enough))

        row = self._store.submit("HMGET", schema.REBALANCE, node, _enough_field(node), priority=Priority.CONTROL)
        return Answer(row, parse)


def _enough_field(node: str) -> str:
    """The field for `enough`. A node's name contains no space, so this is no other node's field."""
    return f"{node} enough"
