"""Which agents move in a second: those of pods that leave, and of pods that have more links than a rebalance lets them
keep. `simulation` calls it in every second.

All pods share one budget. Its rate is the formula of `fairlead.fleet.moves.move_rate`, from what each modelled node can
accept besides its present work. A pod that drains and is granted too little keeps to its even pace (`even_pace` of the
same module, here for all pods at once), and in the last part of its drain it moves what is left evenly over the time
that is left, both on overdraft.
"""

from __future__ import annotations

import math

import numpy as np

from fairlead.fleet.moves.move_rate import FINAL_SECONDS, LAG_SECONDS, RECEIVED_SHARE, move_rate, spare_accept_rate
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.arrays import Counts, Flags, draw_without_return
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

    def report(self, pods: PodTable) -> None:
        """Each node reports what it can accept besides its present work. A modelled node only accepts links."""
        rate = self._accept_rate
        pods.reported_spare[:] = [
            0.0 if leaving else spare_accept_rate(rate, 1 - accepting / rate, accepting, links, self._capacity)
            for leaving, accepting, links in zip(
                pods.leaving.tolist(), pods.reported_accepting.tolist(), pods.reported_links.tolist(), strict=True
            )
        ]

    def rate(self, pods: PodTable) -> float:
        """Moves per second of the whole fleet, by the last reports. The pods that take new links without a limit until
        the next pass receive.
        """
        return move_rate(self._spare(pods), self._most)

    def _spare(self, pods: PodTable) -> list[float]:
        """What each pod that receives can accept."""
        at = np.flatnonzero(pods.serving & ~pods.excluded & (pods.enough == FAR) & (pods.reported_at != NEVER))
        spare: list[float] = pods.reported_spare[at].tolist()
        return spare

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
        overdue: Counts = np.maximum(self._due(pods, now) - moving, 0) + self._behind(pods, moving, now)
        if overdue.any():
            self._bucket.overdraw(int(overdue.sum()), rate, now)
        return moving + overdue

    def _due(self, pods: PodTable, now: int) -> Counts:
        """Agents that pods near the end of their drain have to move now."""
        left = self._left(pods, now)
        return np.where(self._final(pods, left), -(-pods.links // left), 0)

    def _behind(self, pods: PodTable, moving: Counts, now: int) -> Counts:
        """Agents by which pods are behind their even pace, before the end of their drain is near."""
        draining = pods.leaving & (pods.links > 0)
        left = self._left(pods, now)
        early = draining & ~self._final(pods, left)
        if not early.any():
            return np.zeros(len(pods), np.int64)
        accepted = RECEIVED_SHARE * sum(self._spare(pods)) / int(np.count_nonzero(draining))
        pace = np.where(early, np.minimum(pods.links / left, accepted), 0.0)
        pods.owed += pace - moving
        behind = np.floor(np.maximum(pods.owed - pace * LAG_SECONDS, 0)).astype(np.int64)
        behind = np.where(early, np.minimum(behind, pods.links - moving), 0)
        pods.owed -= behind
        return behind

    def _left(self, pods: PodTable, now: int) -> Counts:
        """Seconds that are left of each drain, at least one."""
        return np.maximum(self._drain_seconds - (now - pods.left_at), 1)

    def _final(self, pods: PodTable, left: Counts) -> Flags:
        final: Flags = pods.leaving & (left <= min(FINAL_SECONDS, self._drain_seconds // 2))
        return final
