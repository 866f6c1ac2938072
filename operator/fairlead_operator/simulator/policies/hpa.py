"""The HorizontalPodAutoscaler of Kubernetes by its documented algorithm and default behaviour, on links per pod.

Source: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, "Algorithm details" and "Default
Behavior". The metric is a Pods metric with an averageValue of `targetUtilisation` of a pod's capacity.
"""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.policies.scaling_policy import FleetView, ScaleOrder, ScalingPolicy

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance`: a ratio this close to 1 changes nothing."""
SYNC_SECONDS = 15
"""`--horizontal-pod-autoscaler-sync-period`."""
DOWN_WINDOW = 300
"""behavior.scaleDown.stabilizationWindowSeconds: the greatest recommendation within it holds."""
UP_PODS, UP_PERCENT, UP_PERIOD = 4, 100, 15
"""behavior.scaleUp: the greater of both within 15 s. Downwards, 100 % may go within 15 s, which limits nothing."""


def tolerated(ratio: float) -> bool:
    """Whether a ratio of the metric to its target is close enough to 1."""
    return 1 - TOLERANCE <= ratio <= 1 + TOLERANCE


def desired_replicas(current: int, links: int, reporting: int, silent: int, target: float) -> int:
    """The formula: ceil(current × metric ÷ target), with the tolerance and with pods that report nothing.

    `links` are those of the `reporting` pods and `target` those that a pod should have. Silent pods count as empty when
    the fleet would grow, and as filled to the target when it would shrink.
    """
    if reporting == 0:
        return current
    ratio = links / (reporting * target)
    pods = reporting
    if silent:
        assumed = 0.0 if ratio > 1 else silent * target
        pods = reporting + silent
        adjusted = (links + assumed) / (pods * target)
        if (ratio > 1) != (adjusted > 1):
            return current
        ratio = adjusted
    if tolerated(ratio):
        return current
    return math.ceil(ratio * pods)


class HorizontalPodAutoscaler(ScalingPolicy):
    name = "hpa"
    text = "HPA v2 with its defaults; a pod that leaves closes its links at once"
    period = SYNC_SECONDS

    def __init__(self, spec: LinkGatewaySpec) -> None:
        self._bounds = spec.replicas
        self._target = spec.capacity * spec.target_utilisation / 100
        self._recommended: list[tuple[int, int]] = []
        self._sizes: list[tuple[int, int]] = []

    def order(self, view: FleetView) -> ScaleOrder:
        desired = self._desired(view)
        return ScaleOrder(view.replicas if desired is None else self.limited(desired, view.replicas, view.now))

    def _desired(self, view: FleetView) -> int | None:
        """What the formula says; None when there is no metric: then the controller does not scale."""
        if not view.readable:
            return None
        reporting = int(view.pods.staying.sum()) - view.silent
        return desired_replicas(view.replicas, view.reported_links, reporting, view.silent, self._target)

    def limited(self, desired: int, current: int, now: int) -> int:
        """The number of pods after the window, the limits of a step and the bounds."""
        self._recommended = [(at, one) for at, one in self._recommended if now - at < DOWN_WINDOW]
        self._recommended.append((now, desired))
        stable = min(current, max(one for _, one in self._recommended)) if desired < current else desired
        self._sizes = [(at, size) for at, size in self._sizes if now - at < UP_PERIOD]
        base = min([current, *(size for _, size in self._sizes)])
        self._sizes.append((now, current))
        most = max(base + UP_PODS, math.ceil(base * (1 + UP_PERCENT / 100)))
        return min(max(min(stable, most), self._bounds.min), self._bounds.max)
