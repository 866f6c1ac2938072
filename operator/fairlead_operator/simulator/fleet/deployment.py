"""The Deployment of a modelled fleet: it creates, replaces and removes pods as Kubernetes does. Owned by `simulation`.

A rollout follows the spec's `rollingUpdate`: it creates pods up to the surge, and removes old ones as new ones have
been ready for minReadySeconds, unready ones first. A pod that terminates no longer counts. In a rollout in steps the
operator says instead how many new pods there may be, and how many old ones terminate. New pods are spread over the
zones as the Deployment asks the scheduler to: to the zone with the fewest pods of their revision.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.autoscaler.rollout_step import NOT_PACED, RolloutStep, surge_of
from fairlead_operator.simulator.arrays import Counts, Flags
from fairlead_operator.simulator.fleet.pod_table import FAR, PodTable
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Span

P95 = 1.645
"""The 95th percentile of the standard normal distribution."""
ZONES = 3
"""Zones of the modelled cluster."""
DOWN = 0
"""The one that fails, if one does."""
NOBODY: Counts = np.zeros(0, np.int64)


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
        zone_down: Span = NOWHERE,
    ) -> None:
        self._pods = pods
        self._rng = rng
        self._update = update
        self._starts = starts
        self._stuck = stuck
        self._zone_down = zone_down
        self.replicas = 0
        self.revision = 0
        self._rolling_out = False

    @property
    def rolling_out(self) -> bool:
        """Whether pods of two templates exist; those that terminate do not count."""
        if self._rolling_out:
            self._rolling_out = bool((self._pods.staying & (self._pods.revision != self.revision)).any())
        return self._rolling_out

    def begin(self, replicas: int) -> None:
        """Starts with this many ready pods."""
        self.replicas = replicas
        self._pods.add(np.zeros(replicas, np.int64), self.revision, self._zones(0, replicas))
        self._pods.renew_readiness(0)

    def roll_out(self) -> None:
        """The template changes."""
        self.revision += 1
        self._rolling_out = True

    def reconcile(self, now: int, victims: Collection[str], *, by_links: bool, step: RolloutStep = NOT_PACED) -> Counts:
        """Creates and removes pods. Of the ready pods, `victims` are removed first; then any, or with `by_links` (the
        pods have deletion costs) those with the fewest links. Returns the rows of the pods that begin to leave.
        """
        pods = self._pods
        number = len(pods) - int(np.count_nonzero(pods.leaving))
        if not self.rolling_out:
            if number < self.replicas:
                self._create(now, self.replicas - number)
            elif number > self.replicas:
                return self._remove(now, pods.staying, number - self.replicas, victims, by_links=by_links)
            return NOBODY
        staying = pods.staying
        old = staying & (pods.revision != self.revision)
        surge, unavailable = surge_of(self._update, self.replicas)
        if step.paced:
            surge = step.ahead
        create = min(self.replicas - int((staying & ~old).sum()), self.replicas + surge - number)
        if create > 0:
            self._create(now, create)
        if step.paced:
            going = max(0, int(old.sum()) - step.left) if step.going else 0
            return self._remove(now, old, going, victims, by_links=by_links)
        return self._remove_old(now, self.replicas - unavailable, victims, by_links=by_links)

    def _remove_old(self, now: int, least: int, victims: Collection[str], *, by_links: bool) -> Counts:
        """Like Kubernetes' `reconcileOldReplicaSets`: no old pod is removed for a new one that is not available yet,
        unavailable pods are removed first, and `least` pods stay available.
        """
        pods = self._pods
        available = pods.serving & (now - pods.ready_at >= self._update.min_ready_seconds)
        old = pods.staying & (pods.revision != self.revision)
        missing = int((pods.staying & ~old & ~available).sum())
        most = int(pods.staying.sum()) - least - missing
        unready = max(0, min(most, int((old & ~available).sum())))
        ready = max(0, min(most - unready, int(available.sum()) - least, int((old & available).sum())))
        return np.concatenate(
            [
                self._remove(now, old & ~available, unready, victims, by_links=by_links),
                self._remove(now, old & available, ready, victims, by_links=by_links),
            ]
        )

    def _create(self, now: int, number: int) -> None:
        started_at = now + self._starts.draw(self._rng, number)
        if self._stuck.holds(now):
            started_at[0] = max(int(started_at[0]), self._stuck.end)
            self._stuck = NOWHERE
        self._pods.add(started_at, self.revision, self._zones(now, number))

    def _zones(self, now: int, number: int) -> Counts:
        """Where so many new pods are placed."""
        pods = self._pods
        present = pods.zone[pods.staying & (pods.revision == self.revision)]
        counts = np.bincount(present, minlength=ZONES)
        if self._zone_down.holds(now):
            counts[DOWN] = FAR
        placed = np.empty(number, np.int64)
        for i in range(number):
            placed[i] = counts.argmin()
            counts[placed[i]] += 1
        return placed

    def _remove(self, now: int, candidates: Flags, number: int, victims: Collection[str], *, by_links: bool) -> Counts:
        if not number:
            return NOBODY
        pods = self._pods
        at = np.flatnonzero(candidates)
        last = pods.reported_links[at] if by_links else self._rng.permutation(len(at))
        named = np.array([pods.names[i] not in victims for i in at])
        chosen: Counts = at[np.lexsort((last, named, pods.ready[at]))[:number]]  # Kubernetes removes unready pods first
        pods.leave(chosen, now)
        return chosen
