"""The load of a fleet besides its links, smoothed over some passes, so that no single report asks for a pod. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fairlead_operator.autoscaler.history.link_history import SMOOTHING
from fairlead_operator.autoscaler.observation import FleetObservation


@dataclass(frozen=True, slots=True)
class SignalHistory:
    """Each number is a sum over the pods that have reported lately."""

    observed_at: float | None = None
    commands: float = 0.0
    """Commands in flight."""
    cpu: float = 0.0
    """Busy event loops: 1 is a pod whose loop is never idle."""
    memory: float = 0.0
    """Memory in use: 1 is a pod whose memory limit is reached."""
    lag_ms: float = 0.0
    """How late the event loops run what is due."""

    def observe(self, fleet: FleetObservation, now: float) -> SignalHistory:
        """The history after this observation; unchanged when no pod has reported."""
        pods = fleet.fresh_pods
        if not pods or not fleet.readable:
            return self
        then = self.observed_at
        weight = 1.0 if then is None else 1 - math.exp(-max(0.0, now - then) / SMOOTHING)

        def smooth(before: float, value: float) -> float:
            return before + weight * (value - before)

        return replace(
            self,
            observed_at=now,
            commands=smooth(self.commands, sum(pod.commands for pod in pods)),
            cpu=smooth(self.cpu, sum(pod.cpu for pod in pods)),
            memory=smooth(self.memory, sum(pod.memory for pod in pods)),
            lag_ms=smooth(self.lag_ms, sum(pod.lag_ms for pod in pods)),
        )
