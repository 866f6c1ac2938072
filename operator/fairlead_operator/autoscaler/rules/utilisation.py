"""The rule `utilisation`: room for the links, and for those that arrive before a new pod is ready. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot

AHEAD = 0.5
"""Growth is extrapolated over at most this share of the time for which it has lasted. It is unknown when it will end;
something that has lasted for some time lasts for half as long again with a probability of 2/3 (Gott, Nature 363, 1993).
So agents that connect all at once, as in a new fleet, do not require pods that would soon be too many."""


class UtilisationRule(ScalingRule):
    name = "utilisation"
    purpose = (
        "hold the links, and those that arrive or are refused until a new pod is ready, at `targetUtilisation` of the "
        "capacity"
    )

    def required_pods(self, snapshot: Snapshot) -> int:
        inputs = snapshot.inputs
        ahead = min(inputs.lead_seconds, AHEAD * inputs.growing_seconds)
        arriving = max(0.0, inputs.growth) * ahead + inputs.rejects * inputs.lead_seconds
        return math.ceil((inputs.links + arriving) * 100 / (snapshot.spec.target_utilisation * inputs.capacity))
