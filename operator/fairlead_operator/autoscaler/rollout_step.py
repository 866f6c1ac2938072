"""How far a rollout may go until the next pass: how many new pods there are, and how many old ones may terminate. Pure.

A Deployment terminates all old pods once all new ones are available. A large fleet has more links than the budget of
moves can move while those pods drain, so its rollout goes in steps: `plan_step` says in every pass how far, and the
rollout executor writes it into the Deployment. If the links fit into the budget, the rollout is left to the Deployment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fairlead.fleet.directives.exclusion import SETTLE
from fairlead.fleet.moves.move_rate import FINAL_SECONDS, RECEIVED_SHARE
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.pod_spec import RollingUpdate
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rollout import LinkDirection, RolloutHistory, all_links, new_pods, share_of
from fairlead_operator.kube.workload_status import pod_count

NEARLY_NONE = 0.05
"""The next pod may go once those that terminate have at most this share of the fullest old pod's links, however small
the budget is: a drain waits for its last agents until their commands have ended."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """How far the Deployment may go until the next pass."""

    paced: bool
    """Whether a rollout goes in steps. Otherwise the Deployment replaces pods as `rollingUpdate` says."""
    ahead: int = 1
    """Pods of the new template beyond those that replace old ones: its maxSurge."""
    going: int = 0
    """Old pods that terminate now."""
    left: int = 0
    """Old pods that are left then."""
    reason: str = ""
    problem: str = ""
    """Why even one old pod at a time overdraws the budget, "" if it does not."""


def is_paced(fleet: FleetObservation, spec: LinkGatewaySpec) -> bool:
    """Whether the fleet has more links than the budget can move while all its pods drain together. Without a surge, no
    new pod could take the links of the first old one, so the Deployment's own steps apply.
    """
    surge, _ = surge_of(spec.rolling_update, fleet.replicas)
    return surge > 0 and all_links(fleet) > _usual_rate(fleet, spec) * _seconds(spec)


NOT_PACED = RolloutStep(False)


def surge_of(update: RollingUpdate, replicas: int) -> tuple[int, int]:
    """maxSurge and maxUnavailable in pods. Kubernetes rounds the former up and the latter down, and uses 1 for
    maxUnavailable if both are 0.
    """
    surge = math.ceil(_pods(update.max_surge, replicas))
    unavailable = math.floor(_pods(update.max_unavailable, replicas))
    return surge, unavailable if surge or unavailable else 1


def _pods(limit: Any, replicas: int) -> float:
    text = str(limit)
    return replicas * int(text[:-1]) / 100 if text.endswith("%") else int(text)


def plan_step(
    fleet: FleetObservation,
    direction: LinkDirection,
    history: RolloutHistory,
    spec: LinkGatewaySpec,
    rate: float,
    now: float,
    before: RolloutStep,
) -> RolloutStep:
    """The step after `before`. `direction` and `rate`, the moves per second of the budget, are those of this pass.
    While no rollout is in progress, this is the step with which one would begin.
    """
    if not fleet.readable or (fleet.rollout and not fleet.revision):
        return replace(before, going=0, reason="the links of the pods are not known")
    if not is_paced(fleet, spec):
        return NOT_PACED
    surge, _ = surge_of(spec.rolling_update, fleet.replicas)
    ahead = _ahead(fleet, spec)
    if not fleet.rollout or fleet.canary:
        return RolloutStep(True, min(surge, ahead))
    old = _old_pods(fleet)
    ahead += max(0, _filled(fleet) - (fleet.replicas - len(old)))
    settled = direction.revision != "" and history.directed_for(now) >= SETTLE
    going, why = _may_go(fleet, spec, rate) if settled else (0, "new links do not go to new pods alone yet")
    return RolloutStep(
        paced=True,
        ahead=min(surge, max(ahead, before.ahead)),
        going=going,
        left=len(old) - going,
        reason=f"{pod_count(len(old))} of old templates are left, and {going or 'none'} may terminate now: {why}",
        problem=_problem(old, spec, rate) if settled else "",
    )


def _may_go(fleet: FleetObservation, spec: LinkGatewaySpec, rate: float) -> tuple[int, str]:
    """How many old pods may terminate now, and what bounds their number."""
    old, new = _old_pods(fleet), new_pods(fleet)
    _, unavailable = surge_of(spec.rolling_update, fleet.replicas)
    seconds = spec.rolling_update.min_ready_seconds
    available = sum(pod.ready_for >= seconds for pod in new)
    most = min(len(old), len(old) + available - (fleet.replicas - unavailable))
    if most < 1:
        return 0, f"{pod_count(available)} of the new one have been ready for {seconds} s"
    moving, fullest = sum(pod.links for pod in fleet.fresh_pods if pod.leaving), _fullest(old)
    if not fullest:
        return most, "they have no links"
    by_budget = math.floor((rate * _seconds(spec) - moving) / fullest)
    share = share_of(fleet)
    room = sum(max(0, share - pod.links) for pod in new) - moving
    by_room = math.floor(room / fullest)
    going = min(most, by_budget, by_room)
    if going < 1 and moving <= NEARLY_NONE * fullest and rate > 0:
        going = 1
    bound = "the new pods have no room for more" if by_room < by_budget else f"the budget is {rate:.4g} per second"
    return max(0, going), f"{moving} links are moving, and {bound}"


def _old_pods(fleet: FleetObservation) -> list[PodObservation]:
    return [pod for pod in fleet.pods if pod.revision != fleet.revision and not pod.leaving]


def _fullest(pods: list[PodObservation]) -> int:
    return max((pod.links for pod in pods), default=0)


def _ahead(fleet: FleetObservation, spec: LinkGatewaySpec) -> int:
    """New pods beyond those that replace old ones: as many as the budget fills while one pod drains. So there is always
    a pod with room for agents that move, while the next ones start.
    """
    return math.ceil(_usual_rate(fleet, spec) * spec.drain_seconds / share_of(fleet))


def _filled(fleet: FleetObservation) -> int:
    """New pods that have their share of the links, or will have it once the present drains are over. There are more of
    them than have replaced old ones, because agents that connect by themselves go to new pods as well.
    """
    present = sum(pod.links for pod in fleet.fresh_pods if pod.leaving or pod.revision == fleet.revision)
    return math.ceil(present / share_of(fleet))


def _usual_rate(fleet: FleetObservation, spec: LinkGatewaySpec) -> float:
    """Moves per second if the pods did nothing but accept links. The measured rate changes from pass to pass, and a
    rollout that begins in steps must not continue without them.
    """
    return min(spec.moves.max_per_second, RECEIVED_SHARE * spec.accept_rate * fleet.replicas)


def _seconds(spec: LinkGatewaySpec) -> int:
    """The part of a drain in which a pod waits for the budget."""
    return spec.drain_seconds - FINAL_SECONDS


def _problem(old: list[PodObservation], spec: LinkGatewaySpec, rate: float) -> str:
    fullest, seconds = _fullest(old), _seconds(spec)
    if not rate or fullest <= rate * seconds:
        return ""
    return (
        f"an old pod has {fullest} links, and the budget of {rate:.4g} moves per second empties one of at most "
        f"{math.floor(rate * seconds)} in the {seconds} s before the last minute of a drain: what is left then moves "
        "faster (raise moves.maxPerSecond, or give the new pods more CPU or a greater acceptRate)"
    )
