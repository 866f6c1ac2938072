"""Turns an observation and its decision into the status of a LinkGateway: conditions, phase, report. Pure.

The reconciler calls these functions in every pass, and `pass_report` writes what they return.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.gateway_status import (
    DecisionInputs,
    DecisionReport,
    LinkGatewayStatus,
    RebalanceReport,
    RemovalStatus,
    ReplicaBounds,
)
from fairlead_operator.autoscaler.decision import Action, Decision
from fairlead_operator.autoscaler.observation import FRESH, FleetObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, RebalanceState
from fairlead_operator.autoscaler.rollout import LinkDirection
from fairlead_operator.autoscaler.rollout_step import RolloutStep
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.workload_status import FirstSeen, pod_count, slow_start, why_not_running


def gateway_status(
    decision: Decision,
    fleet: FleetObservation,
    spec: LinkGatewaySpec,
    links: int,
    removal: RemovalStatus,
    now: str,
) -> LinkGatewayStatus:
    """The numbers of the status; phase, selector, time of the last scale and conditions are added to it."""
    inputs = decision.inputs
    return LinkGatewayStatus(
        replicas=fleet.replicas,
        ready_replicas=inputs.ready,
        desired_replicas=decision.replicas,
        links=links,
        utilisation_percent=round(100 * links / (inputs.ready * inputs.capacity)) if inputs.ready else 0,
        skew=skew(fleet),
        decision=decision_report(decision, spec, removal, now),
    )


def decision_report(decision: Decision, spec: LinkGatewaySpec, removal: RemovalStatus, now: str) -> DecisionReport:
    return DecisionReport(
        at=now,
        action=decision.action,
        replicas=decision.replicas,
        winner=decision.target.winner,
        reason=decision.reason,
        limited=decision.limited,
        rules=list(decision.rules),
        removal=removal,
        comparison=list(decision.comparison),
        bounds=ReplicaBounds(min=spec.replicas.min, max=spec.replicas.max),
        inputs=_rounded(decision.inputs),
    )


def _rounded(inputs: DecisionInputs) -> DecisionInputs:
    """Rounds the rates to a tenth, so that noise does not cause the status to be written again."""
    return msgspec.structs.replace(
        inputs,
        growth=round(inputs.growth, 1),
        growing_seconds=round(inputs.growing_seconds),
        rejects=round(inputs.rejects, 1),
        lead_seconds=round(inputs.lead_seconds),
    )


def set_scaling_conditions(conditions: Conditions, decision: Decision, spec: LinkGatewaySpec) -> None:
    """Sets ScalingActive and ScalingLimited."""
    mode = spec.scaling.mode
    if mode is Mode.PAUSED:
        message = f"scaling.mode is Paused; the decision would be: {decision.reason}"
        conditions.set("ScalingActive", False, "Paused", message)
    elif mode is Mode.DRY_RUN:
        scales = decision.action in (Action.UP, Action.DOWN)
        action = f"scale {decision.action} to {decision.replicas}" if scales else "do nothing"
        first, *more = (f"{one.name} would set {pod_count(one.replicas)}" for one in decision.comparison)
        others = ", ".join([first, *(one.replace(" would set", "") for one in more)])
        message = f"would {action}: {decision.reason}; on the same reports {others}"
        conditions.set("ScalingActive", False, "DryRun", message)
    elif mode is Mode.EXTERNAL:
        conditions.set("ScalingActive", True, "External", decision.reason)
    elif decision.action is Action.HOLD:
        conditions.set("ScalingActive", False, "Holding", decision.reason)
    else:
        conditions.set("ScalingActive", True, str(decision.action), decision.reason)
    if decision.target.winner == "max":
        message = f"{decision.required} pods are needed, but replicas.max is {spec.replicas.max}"
        conditions.set("ScalingLimited", True, "AtMaximum", message)
    else:
        conditions.set("ScalingLimited", False, "WithinBounds")


def set_rebalance_condition(conditions: Conditions, plan: RebalancePlan) -> None:
    """Sets Rebalanced. It is False only after a rebalance has given up, and stays so while another one tries."""
    if plan.state is RebalanceState.EVEN:
        conditions.set("Rebalanced", True, "Even", plan.reason)
    elif (given_up := plan.given_up) is not None:
        conditions.set("Rebalanced", False, given_up.outcome, given_up.message)
    elif plan.state is RebalanceState.RUNNING:
        conditions.set("Rebalanced", None, "Rebalancing", plan.reason)
    else:
        conditions.set("Rebalanced", None, "Waiting", plan.reason)


def rebalance_report(plan: RebalancePlan, before: RebalanceReport | None, now: str) -> RebalanceReport:
    """`before` is what the last pass reported, `now` the wall clock's time."""
    moved, started_at = (0, None) if before is None else (before.moved, before.started_at)
    if plan.started:
        started_at = now
    if plan.run is not None:
        moved = plan.run.moved
    elif plan.ended is not None:
        moved = plan.ended.moved
    return RebalanceReport(
        state=plan.state, reason=plan.reason, to_move=plan.to_move, moved=moved, started_at=started_at
    )


def set_fleet_conditions(
    conditions: Conditions,
    decision: Decision,
    fleet: FleetObservation,
    spec: LinkGatewaySpec,
    direction: LinkDirection,
    step: RolloutStep,
) -> None:
    """Sets CapacityAsRequested, Progressing and Ready."""
    inputs = decision.inputs
    if fleet.rollout or inputs.leaving or not inputs.fresh:
        pass  # unknown: old pods report the capacity that was requested of them before
    elif inputs.capacity < spec.capacity:
        message = f"pods take only {inputs.capacity} links of the requested {spec.capacity}: their limit of open files"
        conditions.set("CapacityAsRequested", False, "FileLimit", f"{message} is too low")
    else:
        conditions.set("CapacityAsRequested", True, "AsRequested")
    if fleet.rollout:
        pace = f"; {step.reason}" if step.paced and not fleet.canary else ""
        message = f"pods are being replaced by those of a new template{pace}; {direction.reason}"
        conditions.set("Progressing", True, "Rollout", message)
    elif fleet.replicas != inputs.ready or inputs.leaving:
        message = f"{inputs.ready} of {fleet.replicas} pods are ready, {inputs.leaving} are terminating"
        conditions.set("Progressing", True, "Scaling", message)
    else:
        conditions.set("Progressing", False, "Stable")
    least = max(1, min(spec.replicas.min, fleet.replicas))
    if inputs.ready >= least:
        excluded = f", {inputs.excluded} of them leave new links to others" if inputs.excluded else ""
        conditions.set("Ready", True, "Serving", f"{inputs.ready} of {fleet.replicas} pods are ready{excluded}")
    else:
        conditions.set("Ready", False, "PodsNotReady", f"{inputs.ready} of {least} pods are ready")


def set_pods_condition(
    conditions: Conditions, deployment: Object, pods: Sequence[Object], starting: FirstSeen, now: float
) -> None:
    """Sets PodsRunning by the first pod that cannot be created or does not run. `starting` as in `slow_start`."""
    slow = slow_start(pods, starting, now)
    if (problem := why_not_running(deployment, pods)) is not None:
        conditions.set("PodsRunning", False, *problem)
    elif slow is not None:
        conditions.set("PodsRunning", None, *slow)
    else:
        conditions.set("PodsRunning", True, "NoProblemFound")


class LinkCount:
    """The number of links that the status shows.

    Pods report every five seconds, each at its own time. While links move from one pod to another, those in transit are
    in no pod's report: the sum of the reports dips, although no agent has left.
    """

    def __init__(self) -> None:
        self._settled = 0
        self._moved_at = -math.inf

    def shown(self, live: int, *, moving: bool, now: float) -> int:
        """`live` is the sum of the reports. While pods come and go, and until all have reported since then, the result
        is not less than before.
        """
        if moving:
            self._moved_at = now
        if now - self._moved_at > FRESH:
            self._settled = live
        return max(live, self._settled)


def writes_scale(spec: LinkGatewaySpec) -> bool:
    """Whether the operator writes the decision to the Deployment, rather than only reporting it."""
    return spec.scaling.mode in (Mode.AUTO, Mode.EXTERNAL)


def phase(conditions: Conditions, decision: Decision, plan: RebalancePlan, wanted: int, fleet: FleetObservation) -> str:
    """`wanted` is the number of pods that the Deployment is scaled to."""
    if not conditions.is_true("Reconciled"):
        return "Degraded"
    if fleet.rollout:
        return "Canary" if fleet.canary else "RollingOut"
    if decision.action is Action.HOLD:
        return "Holding"
    if decision.inputs.leaving:
        return "Draining"
    if wanted > decision.inputs.ready:
        return "Scaling"
    if plan.state is RebalanceState.RUNNING:
        return "Rebalancing"
    return "Ready" if conditions.is_true("Ready") else "Pending"


def skew(fleet: FleetObservation) -> str:
    """Links of the fullest pod, divided by the mean; "" without links."""
    counts = [pod.links for pod in fleet.fresh_pods if not pod.leaving]
    mean = sum(counts) / len(counts) if counts else 0
    return f"{max(counts) / mean:.2f}" if mean else ""
