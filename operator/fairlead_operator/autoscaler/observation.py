"""A fleet as it is: its Deployment, its pods, which of them have told of themselves, and why others do not run.

Called by the reconciler at each look, with what the API server and Redis gave. Pure. How long a pod has been ready is
counted from when this operator saw it first: wall clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead_operator.autoscaler.history import FleetObservation, NodeReport, PodObservation
from fairlead_operator.kube.objects import Object

STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that waits and has no problem."""
START_PATIENCE = 10.0
"""Seconds after which such a wait is told: an image that is there starts within two, and what holds a pod up for longer
(an image to be pulled; a volume, a Secret or a ConfigMap that is missing) is what somebody looks for."""
SAME = {"ErrImagePull": "ImagePullBackOff"}
"""Reasons between which a kubelet goes to and fro."""


def observe_fleet(
    deployment: Object,
    pods: Sequence[Object],
    rows: Mapping[str, NodeReport] | None,
    ready_since: dict[str, float],
    now: float,
) -> FleetObservation:
    """`rows` is None when Redis gave none. `ready_since` (uid → time) is carried on from look to look."""
    seen = []
    standing = {}
    for pod in pods:
        if has_ended(pod):
            continue
        meta = pod["metadata"]
        ready = is_ready(pod)
        if ready:
            standing[meta["uid"]] = ready_since.get(meta["uid"], now)
        seen.append(
            PodObservation(
                name=meta["name"],
                ready=ready,
                ready_for=now - standing[meta["uid"]] if ready else 0.0,
                leaving="deletionTimestamp" in meta,
                row=rows.get(meta["name"]) if rows is not None else None,
            )
        )
    ready_since.clear()
    ready_since.update(standing)
    return FleetObservation(
        replicas=replicas(deployment),
        pods=tuple(sorted(seen, key=lambda pod: pod.name)),
        readable=rows is not None,
        rollout=is_rolling(deployment),
    )


def replicas(deployment: Object) -> int:
    return int(deployment["spec"].get("replicas", 1))


def has_ended(pod: Object) -> bool:
    """Evicted, and kept for whoever asks why."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def why_not_running(deployment: Object, pods: Sequence[Object]) -> tuple[str, str] | None:
    """Reason and message of the first problem with making or running pods, as Kubernetes tells it; None without any."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            return condition.get("reason") or "ReplicaFailure", condition.get("message") or "no pod can be made"
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        if has_ended(pod) or is_ready(pod) or "deletionTimestamp" in pod["metadata"]:
            continue
        if why := _trouble_of(pod):
            return why[0], f"{pod['metadata']['name']}: {why[1]}"
    return None


def slow_start(pods: Sequence[Object], starting_since: dict[str, float], now: float) -> tuple[str, str] | None:
    """Reason and message of the first pod whose container has not been made for long, None without any.
    `starting_since` (uid → time) is carried on from look to look."""
    waiting = {}
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        if not has_ended(pod) and "deletionTimestamp" not in pod["metadata"] and (reason := _starting(pod)):
            waiting[pod["metadata"]["uid"]] = pod["metadata"]["name"], reason
    kept = {uid: starting_since.get(uid, now) for uid in waiting}
    starting_since.clear()
    starting_since.update(kept)
    for uid, (name, reason) in waiting.items():
        if now - kept[uid] >= START_PATIENCE:
            why = "its image is being pulled, or a volume, Secret or ConfigMap of it is missing"
            return reason, f"{name} has not started for more than {START_PATIENCE:g} s: {why}"
    return None


def _starting(pod: Object) -> str:
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        reason = str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")
        if reason in STARTING:
            return reason
    return ""


def _trouble_of(pod: Object) -> tuple[str, str] | None:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if ended and not container.get("started"):
            *_, said = ["nothing was said", *str(ended.get("message") or "").splitlines()]
            return "Crashing", f"its container ended with {ended.get('exitCode')}, and is started again: {said[:300]}"
        reason = str(waiting.get("reason") or "")
        if reason and reason not in STARTING:
            return SAME.get(reason, reason), waiting.get("message") or "its container cannot start"
    for condition in status.get("conditions") or []:
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            return condition.get("reason") or "Unschedulable", condition.get("message") or "no node takes it"
    return None


def is_rolling(deployment: Object) -> bool:
    """Whether pods of two templates are there, or are about to be."""
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration", 0)) < int(deployment["metadata"].get("generation", 0)):
        return True
    return int(status.get("updatedReplicas", 0)) < int(status.get("replicas", 0))
