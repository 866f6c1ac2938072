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
        inputs = snapshot.inputs
        return tolerant_pods(inputs.links, inputs.capacity, snapshot.spec.scaling.failure_tolerance)


def tolerant_pods(links: int, capacity: int, failures: int) -> int:
    """Pods of `capacity` links each, of which as many as `failures` may fail while the others hold all `links`."""
    return math.ceil(links / (FILL_AFTER_FAILURE * capacity)) + failures
