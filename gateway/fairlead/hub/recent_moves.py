"""The agents of this node that a rebalance has moved within the last hour, here or away from another node.

The hub has one. The registration adds an agent if its claim says so, and the rebalancer moves none of them again.
Only these agents are kept, so that an idle session costs nothing.
"""

from __future__ import annotations

MOVE_PERIOD_MS = 3600_000
"""A rebalance moves an agent once within this time at most, wherever the agent lands: the load balancer may send it
back."""
LEAST_PRUNED = 1_000
"""Agents from which on those whose time is over are removed, each time that the number has doubled."""


class RecentMoves:
    def __init__(self) -> None:
        self._moved: dict[str, int] = {}
        self._prune_at = LEAST_PRUNED

    def __len__(self) -> int:
        return len(self._moved)

    def note(self, agent: str, at: int, now: int) -> None:
        """The agent was last moved at `at`; both are Redis TIME in ms, and `at` is 0 for never."""
        if now - at >= MOVE_PERIOD_MS:
            return
        self._moved[agent] = at
        if len(self._moved) >= self._prune_at:
            self._moved = {one: at for one, at in self._moved.items() if now - at < MOVE_PERIOD_MS}
            self._prune_at = max(LEAST_PRUNED, 2 * len(self._moved))

    def may_move(self, agent: str, now: int) -> bool:
        """Whether the agent was not moved within the last hour."""
        return now - self._moved.get(agent, 0) >= MOVE_PERIOD_MS
