"""Writes a decision to the Deployment: more pods by a new replica count, fewer by naming the pod that shall go first.

Used by the reconciler. The ReplicaSet controller chooses which pod it deletes; the pod deletion cost tells it which.
The costs are written first, and the controllers get a moment to see them. The scale is written only onto the Deployment
that was read, so that two writers never add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from fairlead_operator.autoscaler.history import FleetObservation
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import Conflict, NotFound
from fairlead_operator.kube.objects import Object

COST = "controller.kubernetes.io/pod-deletion-cost"
HEARD = 1.0
"""Seconds for the controllers' caches to hear of the costs: they take milliseconds, and nothing tells when."""
TRIES = 5
"""The Deployment's own controller writes its status whenever a pod turns, and the scale stands in the same object."""
COSTS_A_LOOK = 200
"""Pods whose cost is written at one look, where it is written at every look: the API server has other callers."""


async def scale(cluster: Cluster, namespace: str, deployment: str, before: int, to: int) -> None:
    """Raises Conflict when the Deployment does not ask for `before` pods any more."""
    for again in range(TRIES):
        found = await cluster.get("Deployment", namespace, deployment, "scale")
        asked = int(found["spec"].get("replicas", 0))
        if asked != before:
            raise Conflict(f"somebody else has set {deployment} to {asked} replicas: looking again")
        meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
        body = {"metadata": meta, "spec": {"replicas": to}}
        try:
            await cluster.patch("Deployment", namespace, deployment, body, "scale")
        except Conflict:
            if again == TRIES - 1:
                raise
        else:
            return


async def remove_one(
    cluster: Cluster,
    namespace: str,
    deployment: str,
    pods: Iterable[Object],
    costs: Mapping[str, int],
    before: int,
) -> None:
    """One pod less: the one of the least cost."""
    await write_costs(cluster, namespace, pods, costs)
    await asyncio.sleep(HEARD)
    await scale(cluster, namespace, deployment, before, before - 1)


async def write_costs(
    cluster: Cluster, namespace: str, pods: Iterable[Object], costs: Mapping[str, int], *, near: bool = False
) -> None:
    """Only those that differ; `near`: only those that differ by more than a tenth, and not too many."""
    written = 0
    for pod in pods:
        name = pod["metadata"]["name"]
        if name not in costs:
            continue
        said = (pod["metadata"].get("annotations") or {}).get(COST)
        if said == str(costs[name]) or (near and said is not None and _near(said, costs[name])):
            continue
        if near and written >= COSTS_A_LOOK:
            return
        try:
            await cluster.patch("Pod", namespace, name, {"metadata": {"annotations": {COST: str(costs[name])}}})
        except NotFound:
            continue  # gone meanwhile
        written += 1


def _near(said: str, cost: int) -> bool:
    try:
        return abs(int(said) - cost) <= max(10, cost // 10)
    except ValueError:
        return False


def who_went(before: frozenset[str], load: FleetObservation) -> frozenset[str]:
    """Those of `before` that are leaving or gone."""
    return before - {pod.name for pod in load.pods if not pod.leaving}
