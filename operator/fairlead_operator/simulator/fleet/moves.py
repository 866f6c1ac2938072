"""Who moves in this second: agents of pods that leave, and of pods that have more links than a rebalance lets them
keep. `simulation` asks in every second.

All pods share one budget. Its rate is the formula of `fairlead.fleet.moves.move_rate`, from what each modelled node can
accept besides its present work. In the last part of its drain a pod moves what is left evenly over the time that is
left, on overdraft.
"""

from __future__ import annotations

import math

import numpy as np

from fairlead.fleet.moves.move_rate import FINAL_SECONDS, move_rate, spare_accept_rate
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.arrays import Counts, Shares, draw_without_return
from fairlead_operator.simulator.fleet.move_bucket import ModelMoveBucket
from fairlead_operator.simulator.fleet.pod_table import FAR, NEVER, PodTable


class FleetMoves:
    def __init__(self, spec: LinkGatewaySpec, rng: np.random.Generator) -> None:
        self._capacity = spec.capacity
        self._accept_rate = spec.accept_rate
        self._most = spec.moves.max_per_second
        self._drain_seconds = spec.drain_seconds
        self._rng = rng
        self._bucket = ModelMoveBucket()
        self._reported: Shares | None = None
        self._rate = 0.0

    def rate(self, pods: PodTable) -> float:
        """Moves per second of the whole fleet, by the last reports. A modelled node has no other work than to accept
        links. Pods receive that take new links, however many they get until the next pass."""
        if self._reported is pods.reported_accepting:
            return self._rate
        self._reported = pods.reported_accepting
        at = np.flatnonzero(pods.serving & ~pods.excluded & (pods.enough == FAR) & (pods.reported_at != NEVER))
        spare = [
            spare_accept_rate(self._accept_rate, 1 - accepting / self._accept_rate, accepting, links, self._capacity)
            for accepting, links in zip(
                pods.reported_accepting[at].tolist(), pods.reported_links[at].tolist(), strict=True
            )
        ]
        self._rate = move_rate(spare, self._most)
        return self._rate

    def draw(self, pods: PodTable, kept: Counts | None, now: int, limit: float = math.inf) -> Counts:
        """Agents of each pod that move now. While a rebalance runs, `kept` are the links that pods keep, and `limit`
        the moves per second that it allows."""
        wanted = np.where(pods.leaving, pods.links, 0)
        if kept is not None:
            movable = np.minimum(pods.links - kept, pods.links - pods.recent.sum(axis=1))
            wanted += np.where(pods.leaving, 0, np.maximum(movable, 0))
        if not wanted.any():
            return wanted
        rate = min(self.rate(pods), limit)
        moving = draw_without_return(self._rng, wanted, self._bucket.take(int(wanted.sum()), rate, now))
        overdue: Counts = np.maximum(self._due(pods, now) - moving, 0)
        if overdue.any():
            self._bucket.overdraw(int(overdue.sum()), rate, now)
        return moving + overdue

    def _due(self, pods: PodTable, now: int) -> Counts:
        """Agents that pods near the end of their drain have to move now."""
        left = np.maximum(self._drain_seconds - (now - pods.left_at), 1)
        final = pods.leaving & (left <= min(FINAL_SECONDS, self._drain_seconds // 2))
        return np.where(final, -(-pods.links // left), 0)
