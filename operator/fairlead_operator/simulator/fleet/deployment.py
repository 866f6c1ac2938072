"""The Deployment of a modelled fleet: it creates, replaces and removes pods as Kubernetes does. Owned by `simulation`.

A rollout keeps to `rollingUpdate` of the spec with maxUnavailable 0: it creates pods up to the surge, and lets an old
one go for each new one that has been ready for minReadySeconds. A pod that terminates no longer counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.simulator.arrays import Counts, Flags
from fairlead_operator.simulator.fleet.pod_table import PodTable
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Span

P95 = 1.645
"""The 95th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class PodStarts:
    """How long pods take from being created to being ready, in seconds: a log-normal distribution."""

    median: float = 30.0
    p95: float = 60.0

    def draw(self, rng: np.random.Generator, number: int) -> Counts:
        sigma = math.log(self.p95 / self.median) / P95
        return np.ceil(self.median * np.exp(sigma * rng.standard_normal(number))).astype(np.int64)


class ModelDeployment:
    def __init__(
        self,
        pods: PodTable,
        rng: np.random.Generator,
        update: RollingUpdate,
        starts: PodStarts,
        stuck: Span = NOWHERE,
    ) -> None:
        self._pods = pods
        self._rng = rng
        self._surge = update.max_surge
        self._min_ready = update.min_ready_seconds
        self._starts = starts
        self._stuck = stuck
        self.replicas = 0
        self.revision = 0

    @property
    def rolling_out(self) -> bool:
        """Whether pods of two templates exist."""
        return bool((self._pods.revision != self.revision).any())

    def begin(self, replicas: int) -> None:
        """So many pods are ready from the beginning."""
        self.replicas = replicas
        self._pods.add(np.zeros(replicas, np.int64), self.revision)
        self._pods.start_ready(0)

    def roll_out(self) -> None:
        """The template changes."""
        self.revision += 1

    def reconcile(self, now: int, victim: str, *, by_links: bool) -> None:
        """Creates and removes pods. `victim` goes first of those that are ready; then any, or with `by_links` (the pods
        have deletion costs) those with the fewest links."""
        pods = self._pods
        staying = pods.staying
        number = int(staying.sum())
        old = staying & (pods.revision != self.revision)
        if not old.any():
            if number < self.replicas:
                self._create(now, self.replicas - number)
            elif number > self.replicas:
                self._remove(now, staying, number - self.replicas, victim, by_links=by_links)
            return
        create = min(self.replicas - int((staying & ~old).sum()), self.replicas + self._most_surge() - number)
        if create > 0:
            self._create(now, create)
        available = pods.serving & (now - pods.ready_at >= self._min_ready)
        spare = int(available.sum()) - self.replicas
        if spare > 0:
            old = pods.staying & (pods.revision != self.revision)
            self._remove(now, old, min(spare, int(old.sum())), victim, by_links=by_links)

    def _most_surge(self) -> int:
        surge = self._surge
        return surge if isinstance(surge, int) else math.ceil(self.replicas * int(surge.rstrip("%")) / 100)

    def _create(self, now: int, number: int) -> None:
        ready_at = now + self._starts.draw(self._rng, number)
        if self._stuck.holds(now):
            ready_at[0] = max(int(ready_at[0]), self._stuck.end)
            self._stuck = NOWHERE
        self._pods.add(ready_at, self.revision)

    def _remove(self, now: int, candidates: Flags, number: int, victim: str, *, by_links: bool) -> None:
        pods = self._pods
        at = np.flatnonzero(candidates)
        last = pods.reported_links[at] if by_links else self._rng.permutation(len(at))
        named = np.array([pods.names[i] != victim for i in at])
        chosen = at[np.lexsort((last, named, pods.ready[at]))[:number]]  # Kubernetes removes unready pods first
        pods.left_at[chosen] = now
