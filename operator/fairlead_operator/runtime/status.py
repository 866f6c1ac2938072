"""A look and its decision in words: the status of a LinkGateway, its conditions, and the Events that tell of changes.

Built by the reconciler at each look. A condition keeps the time of its last turn as long as it does not turn, and a
status that says the same as the one before is not written again (but for the time of the look, once a minute).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import msgspec

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.api.gateway_status import Bounds, DecisionReport, Inputs, LinkGatewayStatus
from fairlead_operator.autoscaler.decision import Action, Decision
from fairlead_operator.autoscaler.history import FRESH, FleetObservation
from fairlead_operator.autoscaler.observation import is_rolling, slow_start, why_not_running
from fairlead_operator.kube.objects import Object

STILL = 60.0
"""Seconds after which an unchanged status is written again: old enough means that nobody looks any more."""


def report(decision: Decision, spec: LinkGatewaySpec, now: str) -> DecisionReport:
    inputs, need = decision.inputs, decision.need
    return DecisionReport(
        at=now,
        action=decision.action,
        replicas=decision.replicas,
        winner=decision.winner,
        reason=decision.reason,
        limited=decision.limited,
        bounds=Bounds(
            load=need.load, survive=need.survive, herd=need.herd, min=spec.replicas.min, max=spec.replicas.max
        ),
        inputs=Inputs(
            links=inputs.links,
            live=inputs.live,
            away=max(0, inputs.links - inputs.live),
            growth=f"{inputs.growth:.1f}",
            rejects=f"{inputs.rejects:.1f}",
            lead_seconds=round(inputs.lead),
            capacity=inputs.capacity,
            pods=inputs.pods,
            ready=inputs.ready,
            fresh=inputs.fresh,
            stale=inputs.stale,
            pending=inputs.pending,
        ),
    )


def scaling_condition(conditions: Conditions, decision: Decision, spec: LinkGatewaySpec) -> None:
    mode = spec.scaling.mode
    if mode is Mode.PAUSED:
        conditions.set("ScalingActive", False, "Paused", f"scaling.mode is Paused; otherwise: {decision.reason}")
    elif mode is Mode.DRY_RUN:
        would = (
            f"{decision.action} to {decision.replicas}" if decision.action in (Action.UP, Action.DOWN) else "nothing"
        )
        conditions.set("ScalingActive", False, "DryRun", f"would do: {would} ({decision.reason})")
    elif mode is Mode.EXTERNAL:
        conditions.set("ScalingActive", True, "External", decision.reason)
    elif decision.action is Action.HOLD:
        conditions.set("ScalingActive", False, "Holding", decision.reason)
    else:
        conditions.set("ScalingActive", True, str(decision.action), decision.reason)
    if decision.winner == "max":
        most = f"{decision.need.most} pods are needed, replicas.max is {spec.replicas.max}"
        conditions.set("ScalingLimited", True, "AtMaximum", most)
    else:
        conditions.set("ScalingLimited", False, "WithinBounds")


def judge(
    conditions: Conditions, decision: Decision, load: FleetObservation, deployment: Object, spec: LinkGatewaySpec
) -> None:
    """Whether the fleet serves, and whether it is where it should be."""
    inputs = decision.inputs
    rolling = is_rolling(deployment)
    if rolling or inputs.leaving or not inputs.fresh:
        pass  # not known: old pods tell what was asked of them before
    elif inputs.capacity < spec.capacity:
        few = f"pods take {inputs.capacity} links of the {spec.capacity} asked for: their open files are limited"
        conditions.set("CapacityAsAsked", False, "FileLimit", few)
    else:
        conditions.set("CapacityAsAsked", True, "AsAsked")
    if rolling:
        conditions.set("Progressing", True, "Rollout", "pods of two templates are there")
    elif load.replicas != inputs.ready or inputs.leaving:
        there = f"{inputs.ready} of {load.replicas} pods are ready, {inputs.leaving} are leaving"
        conditions.set("Progressing", True, "Scaling", there)
    else:
        conditions.set("Progressing", False, "Settled")
    least = min(spec.replicas.min, load.replicas)
    if inputs.ready >= max(1, least):
        conditions.set("Ready", True, "Serving", f"{inputs.ready} pods are ready")
    else:
        conditions.set("Ready", False, "PodsNotReady", f"{inputs.ready} of {max(1, least)} pods are ready")


def pods_condition(
    conditions: Conditions, deployment: Object, pods: Sequence[Object], starting_since: dict[str, float], now: float
) -> None:
    """Whether pods are made and run: of those that do not, the first says why. `starting_since` as in `slow_start`."""
    slow = slow_start(pods, starting_since, now)
    if (why := why_not_running(deployment, pods)) is not None:
        conditions.set("PodsRunning", False, *why)
    elif slow is not None:
        conditions.set("PodsRunning", None, *slow)
    else:
        conditions.set("PodsRunning", True, "NoTroubleSeen")


class LinkCount:
    """The links that a status tells. Pods tell theirs every five seconds, each at its own time: while links go from one
    pod to another those on their way are in nobody's row, and the sum of the rows dips though no agent has left."""

    def __init__(self) -> None:
        self._settled = 0
        self._moved_at = -math.inf

    def shown(self, live: int, *, moving: bool, now: float) -> int:
        """`live` is the sum. While pods come and go, and until all have told since, not less than before it began."""
        if moving:
            self._moved_at = now
        if now - self._moved_at > FRESH:
            self._settled = live
        return max(live, self._settled)


def acts(spec: LinkGatewaySpec) -> bool:
    """Whether the scale is written, and not only told."""
    return spec.scaling.mode in (Mode.AUTO, Mode.EXTERNAL)


def phase(conditions: Conditions, decision: Decision, wanted: int, deployment: Object) -> str:
    """`wanted` pods are on their way, or there."""
    if not conditions.holds("Reconciled"):
        return "Degraded"
    if is_rolling(deployment):
        return "RollingOut"
    if decision.action is Action.HOLD:
        return "Holding"
    if decision.inputs.leaving:
        return "Draining"
    if wanted > decision.inputs.ready:
        return "Scaling"
    return "Ready" if conditions.holds("Ready") else "Pending"


def skew(load: FleetObservation) -> str:
    counts = [pod.row.connections for pod in load.pods if pod.row is not None and pod.fresh and not pod.leaving]
    mean = sum(counts) / len(counts) if counts else 0
    return f"{max(counts) / mean:.2f}" if mean else ""


def changed(before: LinkGatewayStatus, now: LinkGatewayStatus) -> bool:
    """Whether `now` says anything new; the time of the decision alone counts after a minute."""
    if before.decision is not None and now.decision is not None:
        old, new = (datetime.fromisoformat(one.decision.at) for one in (before, now) if one.decision is not None)
        if (new - old).total_seconds() < STILL:
            now = msgspec.structs.replace(now, decision=msgspec.structs.replace(now.decision, at=before.decision.at))
    return now != before
