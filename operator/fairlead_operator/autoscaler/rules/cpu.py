"""The rule `cpu`: event loops are busy for at most a share of the time. Pure."""

from __future__ import annotations

from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.rules.scaling_rule import SignalRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class CpuRule(SignalRule):
    name = "cpu"
    setting = "cpuPercent"
    purpose = "keep the event loops busy for at most `scaling.signals.cpuPercent` of the time"

    def total(self, snapshot: Snapshot) -> float:
        return 100 * snapshot.history.signals.cpu

    def target(self, signals: ScalingSignals) -> float | None:
        return signals.cpu_percent
