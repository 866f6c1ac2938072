"""The HorizontalPodAutoscaler of Kubernetes by its documented algorithm and default behaviour, on links per pod.

Source: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, "Algorithm details" and "Default
Behavior". The metric is a Pods metric with an averageValue of `targetUtilisation` of a pod's capacity.
"""

from __future__ import annotations

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.history.comparison_history import HpaHistory
from fairlead_operator.autoscaler.other_autoscalers import desired_replicas, limited
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy

SYNC_SECONDS = 15
"""`--horizontal-pod-autoscaler-sync-period`."""


class HorizontalPodAutoscaler(ScalingPolicy):
    name = "hpa"
    text = "HPA v2 with its defaults; a pod that leaves closes its links at once"
    period = SYNC_SECONDS

    def __init__(self, spec: LinkGatewaySpec) -> None:
        self._bounds = spec.replicas
        self._target = spec.capacity * spec.target_utilisation / 100
        self._history = HpaHistory()

    def order(self, view: FleetView) -> ScaleOrder:
        desired = self._desired(view)
        return ScaleOrder(view.replicas if desired is None else self.limited(desired, view.replicas, view.now))

    def _desired(self, view: FleetView) -> int | None:
        """The result of the formula; None if there is no metric, in which case the controller does not scale."""
        if not view.readable:
            return None
        reporting = int(view.pods.staying.sum()) - view.silent
        return desired_replicas(view.replicas, view.reported_links, reporting, view.silent, self._target)

    def limited(self, desired: int, current: int, now: int) -> int:
        """The number of pods after the window, the limits of a step and the bounds."""
        replicas, self._history = limited(desired, current, self._history, self._bounds, now)
        return replicas
