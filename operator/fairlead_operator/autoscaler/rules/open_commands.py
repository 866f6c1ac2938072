"""The rule `commandsInFlight`: each pod has at most so many commands in flight. Pure."""

from __future__ import annotations

from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.rules.scaling_rule import SignalRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class CommandsInFlightRule(SignalRule):
    name = "commandsInFlight"
    setting = "commandsPerPod"
    purpose = "run the commands in flight, at most `scaling.signals.commandsPerPod` on each pod"

    def total(self, snapshot: Snapshot) -> float:
        return snapshot.history.signals.commands

    def target(self, signals: ScalingSignals) -> float | None:
        return signals.commands_per_pod
