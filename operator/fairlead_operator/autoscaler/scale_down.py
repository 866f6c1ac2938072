"""Whether a pod may be removed now, which one, and the deletion costs that make Kubernetes choose it. Pure.

Adding a pod is cheap. Removing one moves its links, so it happens slowly, one pod at a time, and only on fresh numbers.
"""

from __future__ import annotations

from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

FILL_AFTER_REMOVAL = 6 / 7
"""Share of the target utilisation to which the remaining pods may be filled: with a target of 70 % they are filled to
60 % at most, so that the pod is not added again at once."""


def why_not_down(snapshot: Snapshot, *, panic: bool, ordered: bool) -> str:
    """What forbids the removal of one pod now, "" for nothing. `ordered`: the number was given from outside or by
    replicas.max, so that neither the window nor the links matter."""
    return _unsettled(snapshot) or ("" if ordered else _still_needed(snapshot, panic=panic))


def _unsettled(snapshot: Snapshot) -> str:
    fleet, inputs, scaling = snapshot.fleet, snapshot.inputs, snapshot.spec.scaling
    if fleet.rollout:
        return "a rollout is in progress"
    if fleet.operation:
        return f"the LinkOperation {fleet.operation} is running"
    if snapshot.history.rebalance.run is not None:
        return "links are being moved from full pods to others"
    if inputs.leaving:
        return f"{pod_count(inputs.leaving)} must finish terminating first"
    if inputs.pending:
        return f"{pod_count(inputs.pending)} must become ready first: Kubernetes would remove unready ones"
    if inputs.excluded:
        return f"{pod_count(inputs.excluded)} must take new links again first: Kubernetes would remove unready ones"
    if inputs.fresh < inputs.ready or inputs.ready < fleet.replicas:
        return f"only {inputs.fresh} of {fleet.replicas} pods have reported"
    if (since := snapshot.now - snapshot.history.removed_at) < scaling.step_down_seconds:
        return f"the last removal was {since:.0f} s ago (stepDownSeconds is {scaling.step_down_seconds})"
    return ""


def _still_needed(snapshot: Snapshot, *, panic: bool) -> str:
    fleet, history, spec = snapshot.fleet, snapshot.history, snapshot.spec
    window = spec.scaling.window_seconds
    if panic:
        return "links are being refused"
    wanted = history.wanted[0][1]
    if wanted >= fleet.replicas:
        return f"{wanted} were wanted within the last {window} s"
    if (watched := snapshot.now - (history.began or 0.0)) < window:
        return f"the fleet has been watched for only {watched:.0f} s (windowSeconds is {window})"
    limit = spec.target_utilisation / 100 * FILL_AFTER_REMOVAL
    filled = snapshot.inputs.links / ((fleet.replicas - 1) * snapshot.inputs.capacity)
    if filled > limit:
        return f"the remaining pods would be filled to {filled:.0%} (at most {limit:.0%} is allowed)"
    return ""


def cheapest_pod(fleet: FleetObservation) -> str:
    """Name of the ready pod whose removal disturbs the least."""
    candidates = [pod for pod in fleet.pods if pod.ready and not pod.leaving]
    return min(candidates, key=lambda pod: (pod.removal_cost, pod.name)).name


def deletion_costs(fleet: FleetObservation, victim: str = "") -> dict[str, int]:
    """Deletion cost of each pod; Kubernetes removes the one of the least cost first. Among equals that is `victim`."""
    costs = {pod.name: pod.removal_cost for pod in fleet.pods}
    least = costs.get(victim)
    return {
        name: cost + 1 if least is not None and name != victim and cost <= least else cost
        for name, cost in costs.items()
    }
