"""Reads the status of Deployments and Pods: what is ready, what is rolling out, and why a pod does not run. Pure.

Called by the autoscaler's observation and for the condition PodsRunning. Durations are measured from when this operator
first saw a pod in a state, so that the wall clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead_operator.kube.objects import Object

REVISION_LABEL = "pod-template-hash"
"""The label of ReplicaSets and their pods that distinguishes the pods of one template from those of another."""
REVISION_NUMBER = "deployment.kubernetes.io/revision"
"""Annotation of a Deployment and of its ReplicaSets: the current ReplicaSet has the Deployment's number."""
CONTAINER_STARTING = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of a container that is starting without a problem."""
START_TIMEOUT = 10.0
"""Seconds after which a container that is still being started is reported. One whose image is present starts within two
seconds; what takes longer (an image to pull; a missing volume, Secret or ConfigMap) is what a reader wants to know."""
SAME_REASON = {"ErrImagePull": "ImagePullBackOff"}
"""Reasons between which a kubelet alternates for one and the same problem."""


class FirstSeen:
    """When each object was first seen in a certain state, by a clock that only goes forward."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def seconds(self, uids: Iterable[str], now: float) -> dict[str, float]:
        """For how long each of `uids` has been in the state without a break. Forgets all others."""
        self._since = {uid: self._since.get(uid, now) for uid in uids}
        return {uid: now - since for uid, since in self._since.items()}


class RolloutWatch:
    """Tells whether a Deployment is rolling out. Its status shows that only after its controller has seen the last
    change; until then, a changed template counts as a rollout that is about to begin. A change of the scale or of a
    limit does not.
    """

    def __init__(self) -> None:
        self._template: Object | None = None
        """The pod template when the controller had last seen all changes."""

    def is_rolling_out(self, deployment: Object) -> bool:
        """Whether pods of two templates exist, or are about to. `deployment` as it is now."""
        template, status = deployment["spec"]["template"], deployment.get("status") or {}
        if _is_observed(deployment):
            self._template = template
        elif template != self._template:
            return True
        return int(status.get("updatedReplicas", 0)) < int(status.get("replicas", 0))


def pod_count(number: int) -> str:
    """In words: "1 pod", "2 pods"."""
    return f"{number} pod" if number == 1 else f"{number} pods"


def replicas(deployment: Object) -> int:
    return int(deployment["spec"].get("replicas", 1))


def current_revision(deployment: Object, replica_sets: Sequence[Object]) -> str:
    """The revision of the Deployment's template as it is now; "" while its controller has not seen it yet."""
    meta = deployment["metadata"]
    number = (meta.get("annotations") or {}).get(REVISION_NUMBER)
    if not number or not _is_observed(deployment):
        return ""
    for one in replica_sets:
        owned = any(ref.get("uid") == meta["uid"] for ref in one["metadata"].get("ownerReferences") or [])
        if owned and (one["metadata"].get("annotations") or {}).get(REVISION_NUMBER) == number:
            return revision_of(one)
    return ""


def _is_observed(deployment: Object) -> bool:
    """Whether its controller has seen its last change."""
    seen = int((deployment.get("status") or {}).get("observedGeneration", 0))
    return seen >= int(deployment["metadata"].get("generation", 0))


def revision_of(labelled: Object) -> str:
    """The revision of a ReplicaSet or of a pod."""
    return str((labelled["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def has_ended(pod: Object) -> bool:
    """Whether the pod was evicted or has failed, and is kept only for inspection."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def crash_of(pod: Object, container: str = "gateway") -> str:
    """How a container last ended, if it has been started again; "" otherwise."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status.get("name") == container and status.get("restartCount", 0) > 0:
            return _last_end((status.get("lastState") or {}).get("terminated") or {})
    return ""


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def why_not_running(deployment: Object, pods: Sequence[Object]) -> tuple[str, str] | None:
    """Reason and message of the first problem with creating or running pods, as Kubernetes reports it, or None."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            return condition.get("reason") or "ReplicaFailure", condition.get("message") or "pods cannot be created"
    for pod in _by_name(pods):
        if has_ended(pod) or is_ready(pod) or is_terminating(pod):
            continue
        if problem := _problem(pod):
            return problem[0], f"{pod['metadata']['name']}: {problem[1]}"
    return None


def slow_start(pods: Sequence[Object], starting: FirstSeen, now: float) -> tuple[str, str] | None:
    """Reason and message of the first pod whose container has been starting for a long time, or None. The caller keeps
    `starting` between calls.
    """
    waiting = {
        pod["metadata"]["uid"]: (pod["metadata"]["name"], reason)
        for pod in _by_name(pods)
        if not has_ended(pod) and not is_terminating(pod) and (reason := _starting_reason(pod))
    }
    for uid, seconds in starting.seconds(waiting, now).items():
        if seconds >= START_TIMEOUT:
            name, reason = waiting[uid]
            causes = "its image is being pulled, or one of its volumes, Secrets or ConfigMaps is missing"
            return reason, f"{name} has not started for more than {START_TIMEOUT:g} s: {causes}"
    return None


def _by_name(pods: Sequence[Object]) -> list[Object]:
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def _starting_reason(pod: Object) -> str:
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        reason = str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")
        if reason in CONTAINER_STARTING:
            return reason
    return ""


def _problem(pod: Object) -> tuple[str, str] | None:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if ended and not container.get("started"):
            return "Crashing", _last_end(ended)
        reason = str(waiting.get("reason") or "")
        if reason and reason not in CONTAINER_STARTING:
            return SAME_REASON.get(reason, reason), waiting.get("message") or "its container cannot start"
    for condition in status.get("conditions") or []:
        if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
            return condition.get("reason") or "Unschedulable", condition.get("message") or "no node accepts it"
    return None


def _last_end(ended: Object) -> str:
    """`ended`: the state `terminated` of a container that was started again."""
    *_, last_line = ["no output", *str(ended.get("message") or "").splitlines()]
    return f"its container exited with code {ended.get('exitCode', 'unknown')} and restarts: {last_line[:300]}"
