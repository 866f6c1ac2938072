"""The agents of this node that a rebalance has moved recently, whichever node moved them, and which of them it
may move again.

The hub has one. The registration notes an agent if its claim says so, and the rebalancer asks before it moves one. Only
these agents are kept, so that an idle session costs nothing. Only moves of a rebalance count: an agent whose node stops
or fails has to leave, and may be moved afterwards, because it has lost the place that the rebalance had given it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MOVE_PERIOD_MS = 3600_000
"""A rebalance moves an agent at most once within this time, wherever the load balancer sends it."""
CROWDED_PERIOD_MS = 600_000
"""The same for a node that is nearly full: as long as the operator waits after a rebalance that could change
nothing."""
CROWDED_SHARE = 0.85
"""The share of its capacity from which on a node counts as nearly full: with up to six nodes, it has no room for its
part of the links of a node that fails. An even spread is not worth a second move; room for those links is."""
LEAST_PRUNED = 1_000
"""The number of agents at which those whose time is over are removed for the first time, and again whenever it has
doubled."""


class RecentMove(NamedTuple):
    """When an agent was moved (Redis TIME in ms), and what allows it to be moved again before its period is over."""

    at: int
    returned: bool
    """It came back to the node that had moved it, as behind a load balancer with sticky sessions: another move would
    achieve nothing."""
    left: str
    """The lease of the node to which the move led it and which it has left since, or "" if the move led it here. If
    that node is gone, the agent had to leave it."""


class RecentMoves:
    def __init__(self) -> None:
        self._moved: dict[str, RecentMove] = {}
        self._prune_at = LEAST_PRUNED

    def __len__(self) -> int:
        return len(self._moved)

    def note(self, agent: str, at: int, now: int, *, returned: bool = False, left: str = "") -> None:
        """Record when the agent was last moved; 0 is never. `at` and `now` are Redis TIME in ms. For `returned` and
        `left` see `RecentMove`."""
        if _is_over(at, now):
            self._moved.pop(agent, None)
            return
        self._moved[agent] = RecentMove(at, returned, left)
        if len(self._moved) >= self._prune_at:
            self._moved = {one: move for one, move in self._moved.items() if not _is_over(move.at, now)}
            self._prune_at = max(LEAST_PRUNED, 2 * len(self._moved))

    def may_move(self, agent: str, now: int, holds: Callable[[str], bool], *, crowded: bool) -> bool:
        """Whether a rebalance may move the agent at `now` (Redis TIME in ms). `holds` tells whether a lease is that of
        a living node, `crowded` whether this node is nearly full."""
        move = self._moved.get(agent)
        if move is None or _is_over(move.at, now):
            return True
        if crowded and not move.returned and now - move.at >= CROWDED_PERIOD_MS:
            return True
        return bool(move.left) and not holds(move.left)


def _is_over(at: int, now: int) -> bool:
    return now - at >= MOVE_PERIOD_MS


def is_crowded(links: int, capacity: int) -> bool:
    """Whether a node with that many links is nearly full."""
    return links >= capacity * CROWDED_SHARE
