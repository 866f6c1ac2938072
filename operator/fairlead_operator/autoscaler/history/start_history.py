"""How long new pods take from being created to being ready, as measured. Pure.

The rule `utilisation` extrapolates growth over this time, because a pod that is added now accepts its first link only
after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fairlead_operator.autoscaler.observation import FleetObservation

KEPT_STARTS = 20
"""The number of starts of which the 95th percentile is taken, which is the second longest of one or two rollouts."""


@dataclass(frozen=True, slots=True)
class StartHistory:
    began: bool = False
    starting: tuple[tuple[str, float], ...] = ()
    """New pods that are not ready yet, and when each was first seen."""
    known: frozenset[str] = frozenset()
    """Pods that have been ready before, or existed at the first observation: their starts cannot be measured."""
    durations: tuple[float, ...] = ()
    """Seconds from when the last pods were first seen until they were ready."""

    @property
    def duration(self) -> float | None:
        """The 95th percentile of the starts; None before the first."""
        starts = sorted(self.durations)
        return starts[math.ceil(0.95 * len(starts)) - 1] if starts else None

    def resume(self, *, keep_starting: bool) -> StartHistory:
        """The history for a new leader. A pod that it sees first may have been created at any time since the last
        observation, so its start cannot be measured.
        """
        return replace(self, began=False, starting=self.starting if keep_starting else ())

    def observe(self, fleet: FleetObservation, now: float) -> StartHistory:
        existing = frozenset(pod.name for pod in fleet.pods)
        first_seen = dict(self.starting)
        known = self.known if self.began else existing - first_seen.keys()
        new = [pod for pod in fleet.pods if pod.name not in known]
        ready = [pod.name for pod in new if pod.ready]
        return StartHistory(
            began=True,
            starting=tuple((pod.name, first_seen.get(pod.name, now)) for pod in new if not pod.ready),
            known=known & existing | set(ready),
            durations=(*self.durations, *(now - first_seen.get(name, now) for name in ready))[-KEPT_STARTS:],
        )
