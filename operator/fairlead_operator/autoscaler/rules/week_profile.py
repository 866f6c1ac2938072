"""The rule `weekProfile`: room for the links that the last weeks had at this time. Pure."""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_status import RuleStatus
from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class WeekProfileRule(ScalingRule):
    """It looks as far ahead as a new pod takes to start. It can only add pods, because the other rules count the
    present links."""

    name = "weekProfile"
    purpose = (
        "hold at `targetUtilisation` the links that the last weeks had until a new pod is ready, if "
        "`scaling.weekProfile` is set"
    )

    def required_pods(self, snapshot: Snapshot) -> int:
        return math.ceil(snapshot.inputs.expected * 100 / (snapshot.spec.target_utilisation * snapshot.inputs.capacity))

    def evaluate(self, snapshot: Snapshot) -> RuleStatus:
        if not snapshot.spec.scaling.week_profile:
            return RuleStatus(name=self.name, replicas=0, reason="scaling.weekProfile is false")
        status = super().evaluate(snapshot)
        reason = f"{status.reason} ({snapshot.inputs.expected} links are expected)"
        return RuleStatus(name=self.name, replicas=status.replicas, reason=reason)
