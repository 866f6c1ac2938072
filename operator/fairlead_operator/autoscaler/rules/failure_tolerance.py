"""The rule `failureTolerance`: the links still fit when as many pods fail as the spec says. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot

FILL_AFTER_FAILURE = 0.95
"""Share of the capacity to which the remaining pods may be filled."""


class FailureToleranceRule(ScalingRule):
    name = "failureTolerance"
    purpose = "hold the links at 95 % of the capacity while `scaling.failureTolerance` of the pods have failed"

    def required_pods(self, snapshot: Snapshot) -> int:
        needed = math.ceil(snapshot.inputs.links / (FILL_AFTER_FAILURE * snapshot.inputs.capacity))
        return needed + snapshot.spec.scaling.failure_tolerance
