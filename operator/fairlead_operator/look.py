"""What there is of one fleet: its Deployment, its pods, and which of them have told of themselves.

Called by the steward at each look, with what the API server and Redis gave. Pure. How long a pod has been ready is
counted from when this operator saw it first: wall clocks of two machines are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead_operator.load import FleetLoad, PodLoad, Row
from fairlead_operator.objects import Object


def fleet_load(
    deployment: Object,
    pods: Sequence[Object],
    rows: Mapping[str, Row] | None,
    ready_since: dict[str, float],
    now: float,
) -> FleetLoad:
    """`rows` is None when Redis gave none. `ready_since` (uid → time) is carried on from look to look."""
    seen = []
    standing = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue  # evicted, and kept for whoever asks why
        meta = pod["metadata"]
        ready = is_ready(pod)
        if ready:
            standing[meta["uid"]] = ready_since.get(meta["uid"], now)
        seen.append(
            PodLoad(
                name=meta["name"],
                ready=ready,
                ready_for=now - standing[meta["uid"]] if ready else 0.0,
                leaving="deletionTimestamp" in meta,
                row=rows.get(meta["name"]) if rows is not None else None,
            )
        )
    ready_since.clear()
    ready_since.update(standing)
    return FleetLoad(
        replicas=replicas(deployment),
        pods=tuple(sorted(seen, key=lambda pod: pod.name)),
        readable=rows is not None,
        rollout=is_rolling(deployment),
    )


def replicas(deployment: Object) -> int:
    return int(deployment["spec"].get("replicas", 1))


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def is_rolling(deployment: Object) -> bool:
    """Whether pods of two templates are there, or are about to be."""
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration", 0)) < int(deployment["metadata"].get("generation", 0)):
        return True
    return int(status.get("updatedReplicas", 0)) < int(status.get("replicas", 0))
