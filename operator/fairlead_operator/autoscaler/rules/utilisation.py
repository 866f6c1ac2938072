"""The rule `utilisation`: room for the links, and for those that arrive before a new pod is ready. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class UtilisationRule(ScalingRule):
    """Growth is extrapolated over the start of a pod. Agents that come back after an outage do so at a great rate and
    for a short time, so below the most links of the last hour growth counts no further than up to these."""

    name = "utilisation"
    purpose = (
        "hold the links, and those that arrive or are refused until a new pod is ready, at `targetUtilisation` of the "
        "capacity"
    )

    def required_pods(self, snapshot: Snapshot) -> int:
        inputs = snapshot.inputs
        back = max(0.0, inputs.growth + inputs.rejects) * inputs.lead_seconds
        new = max(0.0, min(inputs.growth, inputs.record_growth) + inputs.rejects) * inputs.lead_seconds
        arriving = max(new, min(back, inputs.highest - inputs.links))
        return math.ceil((inputs.links + arriving) * 100 / (snapshot.spec.target_utilisation * inputs.capacity))
