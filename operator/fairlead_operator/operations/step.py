"""The next step of a LinkOperation: `next_step` decides what to do from what is observed. Pure.

The runner calls it in every pass. All state is in the operation's own status, so a new leader continues where the old
one stopped, and every action may be repeated without harm. A Drain and a Restart have pods to replace and a number of
pods that must be ready afterwards: the operation is complete when none of the former are left and enough of the latter
are ready. A Rebalance is carried out by the reconciler's passes, and is complete when they end it; a Disconnect is
carried out by the nodes, and is complete when all of them have finished.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from fairlead_operator.api.link_operation import ENDED, LinkOperationStatus, Operation, Phase, Type
from fairlead_operator.autoscaler.history.rebalance_history import RebalanceOutcome
from fairlead_operator.autoscaler.observation import FleetObservation, PodObservation
from fairlead_operator.autoscaler.rebalance import RebalancePlan, RebalanceState
from fairlead_operator.operations.disconnect_progress import DisconnectProgress


class StepAction(StrEnum):
    NOTHING = "nothing"
    EVICT = "evict"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class StepContext:
    """The fleet that an operation is about, as it is observed now."""

    gateway: str
    """Name of the LinkGateway."""
    fleet: FleetObservation
    template_restart: str = ""
    """The uid of the last Restart that changed the Deployment's template."""
    paused: bool = False
    """Whether scaling.mode is Paused."""
    pod_is_foreign: bool = False
    """Whether the pod that a Drain names exists in the namespace but does not belong to this fleet."""
    rebalance: RebalancePlan | None = None
    """What the last pass planned; None in a leader's first pass."""
    disconnect: DisconnectProgress | None = None
    """How far the nodes are with the last Disconnect; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Step:
    """The status to write first, the reason of its conditions, and what to do then."""

    status: LinkOperationStatus
    reason: str
    action: StepAction = StepAction.NOTHING


def next_step(operation: Operation, context: StepContext, ahead: str, now: datetime) -> Step:
    """`ahead` is the name of the operation whose turn comes before this one's, or ""."""
    status = operation.status
    if status.phase in ENDED:
        return Step(status, str(status.phase))
    if operation.spec.cancel:
        begun = status.phase is Phase.RUNNING and operation.spec.type not in (Type.REBALANCE, Type.DISCONNECT)
        message = "cancelled; what has begun goes on" if begun else "cancelled"
        return fail(status, "Cancelled", message, now)
    if status.phase is Phase.RUNNING:
        return _continue(operation, context, now)
    if ahead:
        message = f"waiting for the operation {ahead}: a LinkGateway runs one at a time"
        return Step(replace(status, phase=Phase.PENDING, message=message), "Queued")
    if context.paused:
        return _paused(status, context, now)
    return _begin(operation, context, now)


def fail(status: LinkOperationStatus, reason: str, message: str, now: datetime) -> Step:
    return Step(replace(status, phase=Phase.FAILED, message=message, finished_at=_timestamp(now)), reason)


def _begin(operation: Operation, context: StepContext, now: datetime) -> Step:
    status, pods = operation.status, context.fleet.pods
    if operation.spec.type is Type.REBALANCE:
        begun = replace(status, phase=Phase.RUNNING, started_at=_timestamp(now), message="links are counted")
        return Step(begun, "Rebalancing")
    if operation.spec.type is Type.DISCONNECT:
        begun = replace(status, phase=Phase.RUNNING, started_at=_timestamp(now), message="the nodes are being informed")
        return Step(begun, "Disconnecting")
    if operation.spec.type is Type.DRAIN:
        target = next((pod for pod in pods if pod.name == operation.spec.pod), None)
        if target is None:
            return _pod_not_found(operation, context, now)
        old: Sequence[PodObservation] = [target]
        status = replace(status, pod_uid=target.uid)
        # The replacement counts, whether or not the replaced pod is ready.
        wanted = _ready([pod for pod in pods if pod is not target]) + 1
    else:
        old = pods
        wanted = max(1, _ready(pods))
    status = replace(
        status,
        phase=Phase.RUNNING,
        started_at=_timestamp(now),
        links_at_start=_links(old, context.fleet),
        ready_wanted=wanted,
    )
    return _continue(dataclasses.replace(operation, status=status), context, now)


def _continue(operation: Operation, context: StepContext, now: datetime) -> Step:
    if operation.spec.type is Type.REBALANCE:
        return _continue_rebalance(operation, context, now)
    if operation.spec.type is Type.DISCONNECT:
        return _continue_disconnect(operation, context, now)
    status, is_drain = operation.status, operation.spec.type is Type.DRAIN
    if is_drain:
        old = [pod for pod in context.fleet.pods if pod.uid == status.pod_uid]
    else:
        old = [pod for pod in context.fleet.pods if pod.restarted_by != operation.uid]
    ready, wanted = _ready(context.fleet.pods), min(status.ready_wanted, context.fleet.replicas)
    left = _links(old, context.fleet)
    status = replace(status, links_left=status.links_left if left is None else left)
    if not old and ready >= wanted:
        what = f"{operation.spec.pod} is gone" if is_drain else "all pods are new"
        done = replace(
            status, phase=Phase.SUCCEEDED, message=f"{what}; {ready} pods are ready", finished_at=_timestamp(now)
        )
        return Step(done, "Completed")
    message = _progress(operation, len(old), left) if old else f"{ready} of {wanted} pods are ready"
    if _is_late(operation, now):
        # The message of the status is what the last pass reported.
        return _too_late(operation, status, f"{status.message or message}; what has begun goes on", now)
    action = StepAction.NOTHING
    if is_drain and any(not pod.leaving for pod in old):
        action = StepAction.EVICT
    elif not is_drain and context.template_restart != operation.uid:
        action = StepAction.RESTART
    status = replace(status, message=message)
    if action is not StepAction.NOTHING and context.paused:
        return _paused(status, context, now)
    return Step(status, "Draining" if old else "Replacing", action)


def _progress(operation: Operation, old: int, left: int | None) -> str:
    links = f"{left} links" if left is not None else "an unknown number of links"
    if operation.spec.type is Type.DRAIN:
        return f"{operation.spec.pod} has {links} left"
    return f"{old} old pods have {links} left"


def _continue_rebalance(operation: Operation, context: StepContext, now: datetime) -> Step:
    status, plan = operation.status, context.rebalance
    if context.paused:
        return _paused(status, context, now)
    ended = None if plan is None else plan.history.rebalance.ended
    if ended is not None and ended.operation == operation.uid and ended.outcome is not RebalanceOutcome.INTERRUPTED:
        status = replace(status, links_left=0 if ended.outcome is RebalanceOutcome.EVEN else status.links_left)
        if ended.outcome is RebalanceOutcome.EVEN:
            done = replace(status, phase=Phase.SUCCEEDED, message=ended.message, finished_at=_timestamp(now))
            return Step(done, "Completed")
        return fail(status, ended.outcome, ended.message, now)
    if _is_late(operation, now):
        return _too_late(operation, status, status.message, now)
    if plan is None or plan.run is None or plan.run.operation != operation.uid:
        reason = "links are counted" if plan is None or plan.state is not RebalanceState.WAITING else plan.reason
        return Step(replace(status, message=reason), "Waiting")
    at_start = plan.to_move if status.links_at_start is None else status.links_at_start
    return Step(replace(status, message=plan.reason, links_at_start=at_start, links_left=plan.to_move), "Rebalancing")


def _continue_disconnect(operation: Operation, context: StepContext, now: datetime) -> Step:
    status, progress = operation.status, context.disconnect
    if context.paused:
        return _paused(status, context, now)
    message, waiting = status.message, True
    if progress is not None and progress.operation == operation.uid:
        # Otherwise the nodes have just been told, the leader is new, or Redis is unavailable.
        message, waiting = progress.summary, bool(progress.waiting)
        status = replace(
            status,
            message=message,
            links_at_start=progress.total,
            links_left=progress.left,
            disconnected=progress.closed,
        )
    if not waiting:
        return Step(replace(status, phase=Phase.SUCCEEDED, finished_at=_timestamp(now)), "Completed")
    if _is_late(operation, now):
        return _too_late(operation, status, message, now)
    return Step(status, "Disconnecting")


def _is_late(operation: Operation, now: datetime) -> bool:
    """Whether the deadline has passed, by the wall clocks of the leaders, which differ by far less than its minutes."""
    started_at = operation.status.started_at
    if started_at is None:
        return False
    return (now - datetime.fromisoformat(started_at)).total_seconds() > operation.spec.active_deadline_seconds


def _too_late(operation: Operation, status: LinkOperationStatus, waited_for: str, now: datetime) -> Step:
    seconds = operation.spec.active_deadline_seconds
    message = f"not complete {seconds} s after its start: {waited_for}"
    return fail(status, "DeadlineExceeded", message, now)


def _paused(status: LinkOperationStatus, context: StepContext, now: datetime) -> Step:
    message = f"scaling.mode of {context.gateway} is Paused, so no pod is removed and no link is moved"
    return fail(status, "GatewayPaused", message, now)


def _pod_not_found(operation: Operation, context: StepContext, now: datetime) -> Step:
    pod = operation.spec.pod
    if context.pod_is_foreign:
        message = f"the pod {pod} does not belong to the LinkGateway {context.gateway}"
        return fail(operation.status, "PodNotOwned", message, now)
    return fail(operation.status, "PodNotFound", f"the LinkGateway {context.gateway} has no running pod {pod}", now)


def _ready(pods: Sequence[PodObservation]) -> int:
    return sum(pod.ready and not pod.leaving for pod in pods)


def _links(pods: Sequence[PodObservation], fleet: FleetObservation) -> int | None:
    """The number of links that the pods still hold; None when Redis could not be read."""
    return sum(pod.links for pod in pods) if fleet.readable else None


def _timestamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")
