"""The rule `reconnect`: all agents can connect again within the time that the spec gives them. Pure."""

from __future__ import annotations

import math

from fairlead_operator.autoscaler.rules.scaling_rule import ScalingRule
from fairlead_operator.autoscaler.snapshot import Snapshot


class ReconnectRule(ScalingRule):
    name = "reconnect"
    purpose = "accept all links again within `scaling.reconnectSeconds`, each pod `acceptRate` links per second"

    def required_pods(self, snapshot: Snapshot) -> int:
        spec = snapshot.spec
        return math.ceil(snapshot.inputs.links / (spec.accept_rate * spec.scaling.reconnect_seconds))
