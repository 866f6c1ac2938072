"""Which pods are removed in one step, and the deletion costs that make Kubernetes choose them. Pure.

`decision` asks when nothing holds the removal of one pod (see `removal_hold`). In a small fleet, one pod is removed at
a time. In a large one it would take hours to follow the daily cycle in this way, so several are removed together, as
far as the others have room for their links and the budget of moves can empty them in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from fairlead.fleet.moves.move_rate import FINAL_SECONDS
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.autoscaler.move_rate import fleet_move_rate
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.removal_hold import hold_of_next
from fairlead_operator.autoscaler.snapshot import Snapshot
from fairlead_operator.kube.workload_status import pod_count

STEP_SHARE = 0.05
"""The share of the pods that may be removed in one step; one pod always may. The links of the others then grow by less
than the difference at which a rebalance starts, and the cost of a wrong number is bounded."""

CLOSED_COST = 1_000_000_000
"""By how much the deletion cost of a pod on a closed machine is lower. It exceeds the cost of any pod's links and
commands, and is within what Kubernetes accepts (32 bits)."""
VICTIM_COST = -1
"""The cost of a chosen pod, which is below that of a pod without a cost (0)."""

Criterion = tuple[Callable[[PodObservation], int], Callable[[PodObservation], str]]
"""The weight of a pod, and the reason to give for it: of several pods, those of the greatest weight go first."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that should be removed, and why this one."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """The pods that are removed together."""

    victims: tuple[Victim, ...]
    bound: str
    """Why no more pods are removed in this step; "" in a fleet that is so small that one is removed at a time."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(victim.name for victim in self.victims)

    def __str__(self) -> str:
        first, number = self.victims[0], len(self.victims)
        if number == 1:
            text = f"{first.name} should go: {first.reason}"
        else:
            others = "another" if number == 2 else f"{number - 1} others"
            text = f"{pod_count(number)} should go, {first.name} first: {first.reason}; then {others} by the same rules"
        return f"{text}; no more go at once: {self.bound}" if self.bound else text


def removal_step(snapshot: Snapshot, least: int, *, panic: bool, ordered: bool) -> RemovalStep:
    """The pods to remove now: at least one, and so many that at least `least` pods are left. `panic` and `ordered` are
    those of `removal_hold`, which must not hold the first of them.
    """
    fleet, spec = snapshot.fleet, snapshot.spec
    most = int(fleet.replicas * STEP_SHARE)
    victims = [choose_victim(fleet)]
    bound = "" if most <= 1 else _why_no_more(snapshot, victims, least, panic=panic, ordered=ordered)
    while not bound and len(victims) < most:
        gone = {victim.name for victim in victims}
        left = replace(fleet, pods=tuple(pod for pod in fleet.pods if pod.name not in gone))
        victim = choose_victim(left)
        bound = _over_budget(fleet, spec, {*gone, victim.name})
        if not bound:
            victims.append(victim)
            bound = _why_no_more(snapshot, victims, least, panic=panic, ordered=ordered)
    if most > 1 and not bound:
        bound = f"{STEP_SHARE:.0%} of the pods are the most"
    return RemovalStep(tuple(victims), bound)


def _why_no_more(snapshot: Snapshot, victims: list[Victim], least: int, *, panic: bool, ordered: bool) -> str:
    """Why one more pod cannot be removed in addition to `victims`; "" if it can."""
    left = snapshot.fleet.replicas - len(victims)
    if left <= least:
        return f"{pod_count(least)} must be left"
    hold = hold_of_next(snapshot, len(victims), panic=panic, ordered=ordered)
    return "" if hold is None else hold.reason


def _over_budget(fleet: FleetObservation, spec: LinkGatewaySpec, names: Collection[str]) -> str:
    """Why the pods of these names cannot be removed together; "" if the others can take their links in time, which is
    before the next step and before the last part of the drains, which no longer waits for the budget.
    """
    seconds = min(spec.scaling.step_down_seconds, spec.drain_seconds - FINAL_SECONDS)
    staying = replace(fleet, pods=tuple(pod for pod in fleet.pods if pod.name not in names))
    rate = fleet_move_rate(staying, spec.moves)
    if sum(pod.links for pod in fleet.pods if pod.name in names) <= rate * seconds:
        return ""
    return f"the links of more pods cannot move within {seconds} s at {rate:.4g} per second"


def choose_victim(fleet: FleetObservation) -> Victim:
    """The ready pod to remove. The criteria, each of which decides only among pods that are equal by the previous ones:
    it is on a closed machine; it is of an old revision; its zone has the most pods; its machine has the most pods; its
    removal disturbs the least.
    """
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


def deletion_costs(fleet: FleetObservation) -> dict[str, int]:
    """The deletion cost of each pod in the mode External, in which somebody else decides how many are removed:
    Kubernetes first removes those of the lowest cost, which are pods on closed machines.
    """
    return {pod.name: pod.removal_cost - CLOSED_COST * (pod.machine.closed != "") for pod in fleet.pods}


def removal_costs(written: Mapping[str, int], victims: Collection[str]) -> dict[str, int]:
    """The deletion costs to write so that Kubernetes removes exactly `victims`. `written` has the cost of each pod, 0
    for those without one.

    A victim gets a cost below 0. Every other pod must have 0 or more, so a cost is written for it only if an earlier
    choice or a closed machine has left it a lower one. So a removal takes as many writes as it has victims, however
    large the fleet is.
    """
    asked = {name: VICTIM_COST if name in victims else max(0, cost) for name, cost in written.items()}
    return {name: cost for name, cost in asked.items() if cost != written[name]}
