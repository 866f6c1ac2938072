"""KEDA: an HPA on one external metric, the links of the whole fleet, with KEDA's fallback if the metric is unavailable.

Source: https://keda.sh/docs/latest/reference/scaledobject-spec/, "fallback". The HPA reads an external metric with an
AverageValue, so pods that report nothing do not matter: the number is ceil(links ÷ target).
"""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.other_autoscalers import average_value_replicas
from fairlead_operator.simulator.policies.hpa import HorizontalPodAutoscaler
from fairlead_operator.simulator.policies.scaling_policy import FleetView

FAILURE_THRESHOLD = 3
"""fallback.failureThreshold of the documentation's example."""


class KedaScaler(HorizontalPodAutoscaler):
    name = "keda"
    text = "KEDA on the sum of the links, falling back to the pods of the greatest demand; closes at once"

    def __init__(self, spec: LinkGatewaySpec, agents: int) -> None:
        """`agents` is the greatest demand. fallback.replicas has no default; this is what an owner who knows the demand
        would set.
        """
        super().__init__(spec)
        self._fallback = math.ceil(agents / self._target)
        self._failures = 0

    def _desired(self, view: FleetView) -> int | None:
        self._failures = 0 if view.readable else self._failures + 1
        if view.readable:
            return average_value_replicas(view.replicas, view.reported_links, self._target)
        if self._failures <= FAILURE_THRESHOLD:
            return None
        return average_value_replicas(view.replicas, self._target * self._fallback, self._target)
