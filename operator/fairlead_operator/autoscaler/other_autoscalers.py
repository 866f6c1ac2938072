"""What other autoscalers would do with the same reports: Kubernetes' HorizontalPodAutoscaler, and KEDA. Pure.

In the mode DryRun, `decision` reports it together with its own number, for users who compare before they switch. The
simulator uses the same formulas for modelled fleets.

Sources: https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, "Algorithm details" and "Default
Behavior", and https://keda.sh/docs/latest/reference/scaledobject-spec/. The HPA reads a Pods metric with an
averageValue of `targetUtilisation` of a pod's capacity; KEDA's HPA reads an external metric, the links of the fleet,
with the same AverageValue.
"""

from __future__ import annotations

import math

from fairlead_operator.api.gateway_spec import Mode, Replicas
from fairlead_operator.api.gateway_status import ComparedAutoscaler
from fairlead_operator.autoscaler.history.comparison_history import ComparisonHistory, HpaHistory
from fairlead_operator.autoscaler.history.link_history import add_maximum
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance`: a ratio this close to 1 changes nothing."""
DOWN_WINDOW = 300
"""behavior.scaleDown.stabilizationWindowSeconds: the greatest recommendation within it holds."""
UP_PODS, UP_PERCENT, UP_PERIOD = 4, 100, 15
"""behavior.scaleUp: the greater of the two within 15 s. For scaleDown it is 100 % within 15 s, which is no limit."""
HPA, KEDA = "hpa", "keda"


def compare(snapshot: Snapshot) -> tuple[tuple[ComparedAutoscaler, ...], ComparisonHistory]:
    """What each of the others would set now, and what it would remember; nothing unless the mode is DryRun."""
    if snapshot.spec.scaling.mode is not Mode.DRY_RUN:
        return (), ComparisonHistory()
    before, current = snapshot.history.compared, snapshot.fleet.replicas
    target = snapshot.spec.capacity * snapshot.spec.target_utilisation / 100
    staying = [pod for pod in snapshot.fleet.pods if not pod.leaving]
    fresh = [pod for pod in staying if pod.fresh]
    if not snapshot.fleet.readable or not fresh:
        reason = "it has no metric, so it would not scale"
        return tuple(ComparedAutoscaler(name=name, replicas=current, reason=reason) for name in (HPA, KEDA)), before
    links = sum(pod.links for pod in fresh)
    desired = desired_replicas(current, links, len(fresh), len(staying) - len(fresh), target)
    hpa = _explained(HPA, desired, current, before.hpa, snapshot)
    desired = average_value_replicas(current, links, target)
    keda = _explained(KEDA, desired, current, before.keda, snapshot)
    return (hpa[0], keda[0]), ComparisonHistory(hpa[1], keda[1])


def _explained(
    name: str, desired: int, current: int, before: HpaHistory, snapshot: Snapshot
) -> tuple[ComparedAutoscaler, HpaHistory]:
    replicas, history = limited(desired, current, before, snapshot.spec.replicas, snapshot.now)
    reason = f"its formula asks for {pod_count(desired)}"
    if replicas > desired:
        reason += ", and it waits for its stabilization window" if replicas == current else ", and min holds it"
    elif replicas < desired:
        reason += ", and its limit of a step or max holds it"
    return ComparedAutoscaler(name=name, replicas=replicas, reason=reason), history


def tolerated(ratio: float) -> bool:
    """Whether a ratio of the metric to its target is close enough to 1."""
    return 1 - TOLERANCE <= ratio <= 1 + TOLERANCE


def desired_replicas(current: int, links: int, reporting: int, silent: int, target: float) -> int:
    """The HPA's formula: ceil(current × metric ÷ target), with the tolerance and with pods that report nothing.

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


def average_value_replicas(current: int, total: float, target: float) -> int:
    """The formula for an external metric: ceil(total ÷ target), unless the mean is within the tolerance of the
    target."""
    if current and tolerated(total / (current * target)):
        return current
    return math.ceil(total / target)


def limited(desired: int, current: int, before: HpaHistory, bounds: Replicas, now: float) -> tuple[int, HpaHistory]:
    """The number of pods after the stabilization window, the limit of a step and the bounds; and the history with
    it."""
    recommended = add_maximum(before.recommended, now, desired, DOWN_WINDOW)
    stable = min(current, recommended[0][1]) if desired < current else desired
    sizes = tuple((at, size) for at, size in before.sizes if now - at < UP_PERIOD)
    base = min([current, *(size for _, size in sizes)])
    most = max(base + UP_PODS, math.ceil(base * (1 + UP_PERCENT / 100)))
    replicas = min(max(min(stable, most), bounds.min), bounds.max)
    return replicas, HpaHistory(recommended, (*sizes, (now, current)))
