"""Whether a pod may be removed now, which one, and the deletion costs that make Kubernetes choose it. Pure.

Adding a pod is cheap. Removing one moves its links, so it happens slowly, one pod at a time, and only on fresh numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

FILL_AFTER_REMOVAL = 6 / 7
"""Share of the target utilisation to which the remaining pods may be filled: with a target of 70 % they are filled to
60 % at most, so that the pod is not added again at once."""

CLOSED_COST = 1_000_000_000
"""By so much a pod on a closed machine is cheaper to remove than another: more than the links and commands of any pod
amount to, and a cost that Kubernetes accepts (32 bits)."""


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
    removed_at = snapshot.history.removed_at
    if removed_at is not None and (since := snapshot.now - removed_at) < scaling.step_down_seconds:
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


Criterion = tuple[Callable[[PodObservation], int], Callable[[PodObservation], str]]
"""Among some pods those of the greatest weight go first; and what to say of them."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The pod that should be removed, and why it and no other."""

    name: str
    reason: str


def choose_victim(fleet: FleetObservation) -> Victim:
    """The ready pod to remove: on a closed machine, of an old revision, of the zone and then of the machine with the
    most pods, with the fewest links. Each of these counts only among the pods that are equal by those before it."""
    staying = [pod for pod in fleet.pods if pod.ready and not pod.leaving]
    zones = Counter(pod.zone for pod in staying) if all(pod.zone for pod in staying) else Counter[str]()
    machines = Counter(pod.machine.name for pod in staying)
    on_closed: Criterion = (
        lambda pod: pod.machine.closed != "",
        lambda pod: f"its machine {pod.machine.name} is {pod.machine.closed}",
    )
    old: Criterion = (lambda pod: fleet.revision not in ("", pod.revision), lambda _: "it is of an old revision")
    crowded_zone: Criterion = (
        lambda pod: zones[pod.zone],
        lambda pod: f"the zone {pod.zone} has the most pods ({zones[pod.zone]})",
    )
    crowded_machine: Criterion = (
        lambda pod: machines[pod.machine.name],
        lambda pod: f"the machine {pod.machine.name} has the most pods ({machines[pod.machine.name]})",
    )
    cheap: Criterion = (
        lambda pod: -pod.removal_cost,
        lambda pod: f"its removal disturbs the least (links: {pod.links}, running commands: {pod.commands})",
    )
    reasons = []
    for weight, reason in (on_closed, old, crowded_zone, crowded_machine, cheap):
        most = max(weight(pod) for pod in staying)
        narrowed = [pod for pod in staying if weight(pod) == most]
        if len(narrowed) < len(staying):
            reasons.append(reason(narrowed[0]))
        staying = narrowed
    victim = min(staying, key=lambda pod: pod.name)
    return Victim(victim.name, ", and ".join(reasons) or "all pods are alike")


def deletion_costs(fleet: FleetObservation, victim: str = "") -> dict[str, int]:
    """Deletion cost of each pod; Kubernetes removes the one of the least cost first. That is `victim` if there is one,
    and otherwise a pod on a closed machine."""
    costs = {pod.name: pod.removal_cost - CLOSED_COST * (pod.machine.closed != "") for pod in fleet.pods}
    if victim in costs:
        others = [cost for name, cost in costs.items() if name != victim]
        costs[victim] = min([costs[victim], *(cost - 1 for cost in others)])
    return costs
