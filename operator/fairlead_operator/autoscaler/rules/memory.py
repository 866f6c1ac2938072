"""The rule `memory`: the pods use at most a share of their memory limit. Pure."""

from __future__ import annotations

from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.rules.scaling_rule import SignalRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class MemoryRule(SignalRule):
    name = "memory"
    setting = "memoryPercent"
    purpose = "hold the memory in use at `scaling.signals.memoryPercent` of the limit of the pods"

    def total(self, snapshot: Snapshot) -> float:
        return 100 * snapshot.history.signals.memory

    def target(self, signals: ScalingSignals) -> float | None:
        return signals.memory_percent
