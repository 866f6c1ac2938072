"""What is remembered of a canary between two passes: what it and the other pods have served since it began. Pure.

A new leader starts from nothing, because it does not know what the other pods had counted when the canary began. The
canary is then watched for its whole time again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.autoscaler.canary.measurement import Served
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

LONGEST_STEP = 30.0
"""The longest time between two passes that counts, in seconds: what happened in a longer break is unknown."""


@dataclass(frozen=True, slots=True)
class CanaryHistory:
    revision: str = ""
    """The revision of the canary to which the other fields belong."""
    observed_at: float | None = None
    watched: float = 0.0
    """Seconds for which all pods of the canary have served, as far as they were observed."""
    waited: float = 0.0
    """Seconds since all of them last served, or since the canary began."""
    canary: Served = field(default_factory=Served)
    others: Served = field(default_factory=Served)
    counters: tuple[tuple[str, Traffic], ...] = ()
    """The last report of each pod, by name."""
    moves: tuple[tuple[str, int], ...] = ()
    """Links that a rebalance has made each of the other pods move, as last reported."""
    moved: int = 0
    """Links that the other pods have been made to move since the canary began."""

    def observe(self, fleet: FleetObservation, pods: int, now: float) -> CanaryHistory:
        """The history after this observation. `pods`: how many the canary should have."""
        if fleet.revision != self.revision:
            return CanaryHistory(fleet.revision).observe(fleet, pods, now)
        began = self.observed_at is None
        seconds = 0.0 if self.observed_at is None else min(now - self.observed_at, LONGEST_STEP)
        if not fleet.readable:
            return replace(self, observed_at=now)
        serving, others = canary_pods(fleet), other_pods(fleet)
        complete = len(serving) >= pods
        moves = {pod.name: pod.moved for pod in others}
        known = dict(self.moves)
        return replace(
            self,
            observed_at=now,
            watched=self.watched + (seconds if complete else 0.0),
            waited=0.0 if complete else self.waited + seconds,
            canary=self.canary if began else self._add(self.canary, serving, seconds),
            others=self.others if began else self._add(self.others, others, seconds),
            counters=tuple(
                (dict(self.counters) | {pod.name: pod.traffic for pod in fleet.fresh_pods if pod.traffic}).items()
            ),
            moves=tuple((known | moves).items()),
            moved=self.moved
            + (0 if began else sum(max(0, count - known.get(name, 0)) for name, count in moves.items())),
        )

    def _add(self, served: Served, pods: Iterable[PodObservation], seconds: float) -> Served:
        """`served` plus the growth since the last report of each pod. A pod without a last report has started since
        then.
        """
        known, traffic, link_seconds = dict(self.counters), served.traffic, served.link_seconds
        for pod in pods:
            if pod.traffic is not None:
                traffic += pod.traffic.since(known.get(pod.name, Traffic()))
                link_seconds += pod.links * seconds
        return Served(traffic, link_seconds)


def canary_pods(fleet: FleetObservation) -> list[PodObservation]:
    """Those of the canary that serve."""
    return [pod for pod in fleet.pods if pod.revision == fleet.revision and _serves(pod)]


def other_pods(fleet: FleetObservation) -> list[PodObservation]:
    """Those that the canary is compared with."""
    return [pod for pod in fleet.pods if pod.revision != fleet.revision and _serves(pod)]


def _serves(pod: PodObservation) -> bool:
    return pod.ready and pod.fresh and not pod.leaving
