"""The rule `loopLag`: event loops run what is due with little delay. Pure."""

from __future__ import annotations

import math

from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.rules.scaling_rule import SignalRule
from fairlead_operator.autoscaler.snapshot import Snapshot

MOST_GROWTH = 1.5
"""The maximum that it requires, as a multiple of the pods that report: the lag of an overloaded loop does not tell how
many pods would be enough."""


class LoopLagRule(SignalRule):
    """Requires the number of pods times the mean lag divided by its target, as a HorizontalPodAutoscaler does for the
    mean of a metric.
    """

    name = "loopLag"
    setting = "loopLagMillis"
    purpose = (
        "keep the mean lag of the event loops at `scaling.signals.loopLagMillis`, and at most half as many pods more "
        "than there are"
    )

    def total(self, snapshot: Snapshot) -> float:
        return snapshot.history.signals.lag_ms

    def target(self, signals: ScalingSignals) -> float | None:
        return signals.loop_lag_millis

    def required_pods(self, snapshot: Snapshot) -> int:
        return min(super().required_pods(snapshot), math.ceil(MOST_GROWTH * snapshot.inputs.fresh))
