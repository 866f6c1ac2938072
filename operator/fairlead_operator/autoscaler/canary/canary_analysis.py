"""`judge_canary` decides whether a canary continues, has succeeded or has failed; `canary_targets` says which links are
moved for it. Pure.

The canary executor calls both in every pass of a canary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fairlead_operator.api.gateway_spec import Canary, LinkGatewaySpec, Mode
from fairlead_operator.autoscaler.canary.canary_history import CanaryHistory, canary_pods, other_pods
from fairlead_operator.autoscaler.canary.measurement import Measurement, compare
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.kube.workload_status import pod_count

START_TIMEOUT = 600.0
"""Seconds within which all pods of a canary must serve. It is Kubernetes' default progressDeadlineSeconds, within which
a cluster autoscaler can add a machine."""

PATIENCE = 3
"""A canary that cannot be judged is watched for this many times its `seconds`, because few agents can be moved to it if
most have been moved within the last hour. After that it is accepted, because a quiet fleet must get its new version,
too."""


class CanaryState(StrEnum):
    RUNNING = "Running"
    PROMOTING = "Promoting"
    """It has succeeded. The pods of its template are created, but no old pod may terminate yet."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    state: CanaryState
    reason: str
    message: str
    measurements: tuple[Measurement, ...] = ()


def canary_size(replicas: int, spec: LinkGatewaySpec) -> int:
    """The number of pods of a canary beside `replicas` others. It is limited to what the budget of moves can empty
    during one drain, because the Deployment terminates all pods of a failed canary at once.
    """
    percent = 0 if spec.rollout.canary is None else spec.rollout.canary.percent
    return max(1, min(math.ceil(replicas * percent / 100), spec.moves.max_per_second // spec.moves_of_one))


def judge_canary(
    fleet: FleetObservation, history: CanaryHistory, gateway: LinkGatewaySpec, problem: str = ""
) -> CanaryVerdict:
    """`history` already includes the observation of `fleet`. `problem` is why a pod of the canary does not run, as
    reported by Kubernetes.
    """
    spec, size = gateway.rollout.canary or Canary(), canary_size(fleet.replicas, gateway)
    for pod in fleet.pods:
        if pod.revision == fleet.revision and pod.crash:
            return CanaryVerdict(CanaryState.FAILED, "Crashing", f"{pod.name}: {pod.crash}")
    measured = compare(history.canary, history.others, spec)
    if (worst := next((one for one in measured if one.failed), None)) is not None:
        return CanaryVerdict(CanaryState.FAILED, worst.name, f"{worst}", measured)
    serving = len(canary_pods(fleet))
    if serving < size:
        message = f"{serving} of {pod_count(size)} serve" + (f": {problem}" if problem else "")
        if history.waited < START_TIMEOUT:
            return CanaryVerdict(CanaryState.RUNNING, "Starting", message, measured)
        message = f"{message}, {START_TIMEOUT:.0f} s after the canary began or was complete last"
        return CanaryVerdict(CanaryState.FAILED, "NotReady", message, measured)
    if history.watched < spec.seconds:
        message = f"{pod_count(size)} of the new template serve {_links(fleet)} of {_all_links(fleet)} links and are "
        return CanaryVerdict(
            CanaryState.RUNNING,
            "Comparing",
            f"{message}compared with the others: {history.watched:.0f} of {spec.seconds} s",
            measured,
        )
    return _end(fleet, history, spec, measured)


def _end(
    fleet: FleetObservation, history: CanaryHistory, spec: Canary, measured: tuple[Measurement, ...]
) -> CanaryVerdict:
    """The verdict once the time is over and no measurement has failed."""
    traffic, old = history.canary.traffic, history.others.traffic
    if traffic.rejected and not traffic.accepted and 2 * old.rejected <= old.attempts:
        # These are too few to compare, but no coincidence: rejected agents wait before they try again.
        message = f"it has accepted no link and rejected {traffic.rejected}, while the other pods accept most"
        return CanaryVerdict(CanaryState.FAILED, "LinksRejected", message, measured)
    expected = old.accepted * len(canary_pods(fleet)) / max(1, len(other_pods(fleet)))
    if traffic.accepted < spec.min_links <= expected / 2:
        message = f"it has accepted {traffic.accepted} links, and as many other pods accepted {expected:.0f} meanwhile"
        return CanaryVerdict(CanaryState.FAILED, "NoLinks", message, measured)
    passed = [one.name for one in measured if one.judged]
    unknown = [one.name for one in measured if not one.judged]
    message = f"it has served {traffic.accepted} links and {traffic.ended} commands in {history.watched:.0f} s"
    if unknown:
        message += (
            f"; too few to judge {', '.join(unknown)} (minLinks {spec.min_links}, minCommands {spec.min_commands})"
        )
    if passed:
        return CanaryVerdict(CanaryState.SUCCEEDED, "ServesAsWell", message, measured)
    if history.watched < PATIENCE * spec.seconds:
        return CanaryVerdict(CanaryState.RUNNING, "Comparing", f"{message}; it is watched for longer", measured)
    return CanaryVerdict(CanaryState.SUCCEEDED, "TooLittleTraffic", message, measured)


def canary_targets(fleet: FleetObservation, history: CanaryHistory, spec: LinkGatewaySpec) -> dict[str, int]:
    """How many links each of the other pods should keep, by name, so that the canary gets its share. Empty if the
    canary has its share, or if enough agents have been moved for it.

    A moved agent connects to any ready pod. If that is not one of the canary, that pod moves another agent, so each
    link on the canary takes as many moves as there are pods for each pod of the canary.
    """
    canary = spec.rollout.canary
    if canary is None or not spec.rebalance.enabled or spec.scaling.mode in (Mode.PAUSED, Mode.DRY_RUN):
        return {}
    serving, others = canary_pods(fleet), other_pods(fleet)
    if len(serving) < canary_size(fleet.replicas, spec) or any(pod.stale for pod in fleet.pods):
        return {}
    most = min(canary.percent / 100, len(serving) / max(1, fleet.replicas)) * _all_links(fleet)
    chance = len(serving) / (len(serving) + len(others))
    missing = math.floor(min(most - _links(fleet), (most - history.moved) * chance))
    held = sum(pod.links for pod in others)
    if missing <= 0 or not held:
        return {}
    return {pod.name: pod.links - math.ceil(missing * pod.links / held) for pod in others}


def _links(fleet: FleetObservation) -> int:
    return sum(pod.links for pod in canary_pods(fleet))


def _all_links(fleet: FleetObservation) -> int:
    return _links(fleet) + sum(pod.links for pod in other_pods(fleet))
