"""The rule `prometheus`: pods for a number that a Prometheus query returns. Pure."""

from __future__ import annotations

from fairlead_operator.api.scaling_signals import ScalingSignals
from fairlead_operator.autoscaler.rules.scaling_rule import SignalRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class PrometheusRule(SignalRule):
    """It requires nothing while the query fails; `removal_hold` then lets no pod be removed."""

    name = "prometheus"
    setting = "prometheus"
    purpose = "have at most `scaling.signals.prometheus.targetPerPod` of the value of its query on each pod"

    def total(self, snapshot: Snapshot) -> float:
        queried = snapshot.fleet.queried
        return 0.0 if queried is None or queried.value is None else queried.value

    def target(self, signals: ScalingSignals) -> float | None:
        return None if signals.prometheus is None else signals.prometheus.target_per_pod
