"""The buffer of Agones' FleetAutoscaler, applied to links: a share of the capacity is kept free. It has no window and
no limit.

Source: https://agones.dev/site/docs/reference/fleetautoscaler/ and `applyBufferPolicy` of Agones. Agones removes only
servers that nobody uses, so this is its formula on a fleet whose pods are always in use, not Agones itself.
"""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy


def buffered(allocated: int, buffer_percent: int) -> int:
    """The size at which `buffer_percent` are free while `allocated` are in use: 12 for 8 in use and 30 %."""
    return math.ceil(allocated * 100 / (100 - buffer_percent))


class AgonesBuffer(ScalingPolicy):
    name = "agones"
    text = "the formula of Agones' buffer; a pod that leaves closes its links at once"
    period = 30
    """sync.fixedInterval.seconds."""

    def __init__(self, spec: LinkGatewaySpec) -> None:
        self._spec = spec

    def order(self, view: FleetView) -> ScaleOrder:
        if not view.readable:
            return ScaleOrder(view.replicas)
        spec = self._spec
        wanted = math.ceil(buffered(view.reported_links, 100 - spec.target_utilisation) / spec.capacity)
        return ScaleOrder(min(max(wanted, spec.replicas.min), spec.replicas.max))
