"""The rule `utilisation`: room for the links, and for those that arrive before a new pod is ready. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class UtilisationRule(ScalingRule):
    name = "utilisation"
    purpose = (
        "hold the links, and those that arrive or are refused until a new pod is ready, at `targetUtilisation` of the "
        "capacity"
    )

    def required_pods(self, snapshot: Snapshot) -> int:
        inputs = snapshot.inputs
        arriving = max(0.0, inputs.growth + inputs.rejects) * inputs.lead_seconds
        return math.ceil((inputs.links + arriving) * 100 / (snapshot.spec.target_utilisation * inputs.capacity))
