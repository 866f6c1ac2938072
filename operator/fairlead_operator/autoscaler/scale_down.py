"""Which pod is removed, and the deletion costs that make Kubernetes choose it. Pure.

`decision` asks when nothing holds the removal (see `removal_hold`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation

CLOSED_COST = 1_000_000_000
"""How much less the removal of a pod on a closed machine costs: more than the links and commands of any pod amount to,
and within what Kubernetes accepts (32 bits)."""


Criterion = tuple[Callable[[PodObservation], int], Callable[[PodObservation], str]]
"""The weight of a pod, and the reason to give for it: of several pods, those of the greatest weight go first."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The pod that should be removed, and why this one."""

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
