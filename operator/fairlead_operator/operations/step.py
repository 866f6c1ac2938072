"""One step of an operation: `next_step(operation, sight, ahead, now)`, pure, from what is seen to what is to be done.

Called by the conductor at each look. Nothing is remembered but what stands in the operation's own status, so a new
leader goes on where the old one was; each act may be done twice without harm. Whatever the type, there are pods that
go and pods that must be there instead, and it is complete when none of the first and enough of the second are left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from fairlead_operator.api.link_operation import ENDED, LinkOperationStatus, Operation, Phase, Type


class StepAction(StrEnum):
    NOTHING = "nothing"
    EVICT = "evict"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class OperationPod:
    name: str
    uid: str
    ready: bool = True
    leaving: bool = False
    mark: str = ""
    """The uid of the last Restart that its template went through."""
    links: int | None = 0
    """None when Redis gave none."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """One look at the fleet that an operation is about."""

    gateway: str
    replicas: int
    pods: tuple[OperationPod, ...]
    mark: str = ""
    """That of the Deployment's template."""
    paused: bool = False
    stranger: bool = False
    """A pod of the name that a Drain gives is in the namespace, and not of this fleet."""


@dataclass(frozen=True, slots=True)
class Step:
    """The status to be written first, why, and then what to do about it."""

    status: LinkOperationStatus
    reason: str
    act: StepAction = StepAction.NOTHING


def next_step(operation: Operation, sight: StepContext, ahead: str, now: datetime) -> Step:
    """`ahead` is the operation whose turn is before this one's, "" for none."""
    status = operation.status
    if status.phase in ENDED:
        return Step(status, str(status.phase))
    if status.phase is Phase.RUNNING:
        return _go_on(operation, sight, now)
    if ahead:
        words = f"waits for the operation {ahead}: one at a time at one gateway"
        return Step(replace(status, phase=Phase.PENDING, message=words), "Queued")
    if sight.paused:
        return _paused(status, sight, now)
    if operation.spec.type is Type.DRAIN:
        target = next((pod for pod in sight.pods if pod.name == operation.spec.pod), None)
        if target is None:
            return _no_pod(operation, sight, now)
        going: Sequence[OperationPod] = [target]
        status = replace(status, pod_uid=target.uid)
        # The one that is to come counts, whatever state the one that goes is in.
        wanted = sum(pod.ready and not pod.leaving for pod in sight.pods if pod is not target) + 1
    else:
        going = sight.pods
        wanted = max(1, sum(pod.ready and not pod.leaving for pod in sight.pods))
    status = replace(
        status, phase=Phase.RUNNING, started_at=told(now), links_at_start=_links(going), ready_wanted=wanted
    )
    return _go_on(dataclasses.replace(operation, status=status), sight, now)


def fail(status: LinkOperationStatus, reason: str, message: str, now: datetime) -> Step:
    return Step(replace(status, phase=Phase.FAILED, message=message, finished_at=told(now)), reason)


def told(now: datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")


def _go_on(operation: Operation, sight: StepContext, now: datetime) -> Step:
    status, drain = operation.status, operation.spec.type is Type.DRAIN
    old = [pod for pod in sight.pods if (pod.uid == status.pod_uid if drain else pod.mark != operation.uid)]
    ready = sum(pod.ready and not pod.leaving for pod in sight.pods)
    wanted = min(status.ready_wanted, sight.replicas)
    left = _links(old)
    status = replace(status, links_left=status.links_left if left is None else left)
    if not old and ready >= wanted:
        words = f"{operation.spec.pod} is gone" if drain else "all pods are new"
        words = f"{words}; {ready} pods are ready"
        done = replace(status, phase=Phase.SUCCEEDED, message=words, finished_at=told(now))
        return Step(done, "Completed")
    links = f"{left} links" if left is not None else "an unknown number of links"
    if old:
        words = f"{operation.spec.pod} has {links} left" if drain else f"{len(old)} old pods have {links} left"
    else:
        words = f"{ready} of {wanted} pods are ready"
    if _late(status, operation.spec.active_deadline_seconds, now):
        last = status.message or words  # as told at the last look: what it waited for
        words = f"not complete {operation.spec.active_deadline_seconds} s after its start: {last}; what began goes on"
        return fail(status, "DeadlineExceeded", words, now)
    status = replace(status, message=words)
    act = StepAction.NOTHING
    if drain and any(not pod.leaving for pod in old):
        act = StepAction.EVICT
    elif not drain and sight.mark != operation.uid:
        act = StepAction.RESTART
    if act is not StepAction.NOTHING and sight.paused:
        return _paused(status, sight, now)
    return Step(status, "Leaving" if old else "Replacing", act)


def _late(status: LinkOperationStatus, seconds: int, now: datetime) -> bool:
    """By the clocks of whoever led then and leads now: minutes, where those differ by far less."""
    return status.started_at is not None and (now - datetime.fromisoformat(status.started_at)).total_seconds() > seconds


def _paused(status: LinkOperationStatus, sight: StepContext, now: datetime) -> Step:
    return fail(status, "GatewayPaused", f"scaling.mode of {sight.gateway} is Paused: nothing is taken away", now)


def _no_pod(operation: Operation, sight: StepContext, now: datetime) -> Step:
    pod = operation.spec.pod
    if sight.stranger:
        words = f"the pod {pod} does not belong to the LinkGateway {sight.gateway}"
        return fail(operation.status, "PodOfAnother", words, now)
    return fail(operation.status, "PodNotFound", f"the LinkGateway {sight.gateway} has no running pod {pod}", now)


def _links(pods: Sequence[OperationPod]) -> int | None:
    """None when nobody knows."""
    known = [pod.links for pod in pods if pod.links is not None]
    return sum(known) if len(known) == len(pods) else None
