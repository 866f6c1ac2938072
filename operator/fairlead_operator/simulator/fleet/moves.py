"""Who moves in this second: agents of pods that leave, and of pods that have more links than a rebalance lets them
keep. `simulation` asks in every second.

All pods share one budget. Its rate is the formula of `fairlead.fleet.moves.move_rate`, from what each modelled node can
accept besides its present work; its bucket holds one second's worth, as that of `take_moves.lua` does. In the last part
of its drain a pod moves what is left evenly over the time that is left, on overdraft.
"""

from __future__ import annotations

import math

import numpy as np

from fairlead.fleet.moves.move_rate import FINAL_SECONDS, move_rate, spare_accept_rate
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.arrays import Counts, Flags, draw_without_return
from fairlead_operator.simulator.fleet.pod_table import PodTable

DEBT_SECONDS = 5
"""Seconds of the rate that may be overdrawn (`DEBT_SECONDS` of `fairlead.fleet.moves.move_bucket`)."""


class FleetMoves:
    def __init__(self, spec: LinkGatewaySpec, rng: np.random.Generator) -> None:
        self._capacity = spec.capacity
        self._accept_rate = spec.accept_rate
        self._most = spec.moves.max_per_second
        self._drain_seconds = spec.drain_seconds
        self._most = spec.moves.max_per_second
        self._rng = rng
        self._tokens = 0.0
        self.rate = 0.0
        """Moves per second of the whole fleet."""

    def renew_rate(self, pods: PodTable, receiving: Flags, limit: float = math.inf) -> None:
        """The nodes report what they can accept. A modelled node has no other work than to accept links. `limit`: that
        of the rebalance."""
        accepting = pods.accepted.tolist()
        spare = [
            spare_accept_rate(self._accept_rate, 1 - one / self._accept_rate, one, links, self._capacity)
            for one, links, receives in zip(accepting, pods.links.tolist(), receiving.tolist(), strict=True)
            if receives
        ]
        self.rate = min(move_rate(spare, self._most), limit)

    def draw(self, pods: PodTable, kept: Counts | None, now: int) -> Counts:
        """Agents of each pod that move now. `kept`: links that pods keep while a rebalance runs."""
        self._tokens = min(max(1.0, self.rate), self._tokens + self.rate)
        wanted = np.where(pods.leaving, pods.links, 0)
        if kept is not None:
            movable = np.minimum(pods.links - kept, pods.links - pods.recent.sum(axis=1))
            wanted += np.where(pods.serving, np.maximum(movable, 0), 0)
        if not wanted.any():
            return wanted
        moving = draw_without_return(self._rng, wanted, int(self._tokens))
        self._tokens -= int(moving.sum())
        overdue: Counts = np.maximum(self._due(pods, now) - moving, 0)
        if overdue.any():
            self._tokens = max(min(self._tokens, -self.rate * DEBT_SECONDS), self._tokens - int(overdue.sum()))
        moving += overdue
        return moving

    def _due(self, pods: PodTable, now: int) -> Counts:
        """Agents that pods near the end of their drain have to move now."""
        left = np.maximum(self._drain_seconds - (now - pods.left_at), 1)
        final = pods.leaving & (left <= min(FINAL_SECONDS, self._drain_seconds // 2))
        return np.where(final, -(-pods.links // left), 0)
