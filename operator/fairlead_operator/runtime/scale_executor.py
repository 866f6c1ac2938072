"""Carries a decision out on the Deployment, and checks which pods Kubernetes removed for it.

Each reconciler has one. To add pods, it raises the replica count. To remove pods, it gives the chosen pods the lowest
deletion cost, waits a moment for the ReplicaSet controller to see it, and lowers the count: that controller removes the
pods of the lowest cost. The scale is written only if the Deployment still asks for the number of pods that was read, so
that the changes of two writers never add up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fairlead_operator.api.gateway_spec import LinkGatewaySpec, Mode
from fairlead_operator.autoscaler.decision import Action, Decision
from fairlead_operator.autoscaler.observation import FleetObservation
from fairlead_operator.autoscaler.scale_down import CLOSED_COST, deletion_costs, removal_costs
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied, Conflict, NotFound
from fairlead_operator.kube.objects import Object
from fairlead_operator.metrics import GatewayMetrics
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.reports.pass_report import PassReport
from fairlead_operator.runtime.reports.status import writes_scale

logger = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
CACHE_DELAY = 1.0
"""Seconds for the controllers' caches to see the costs. This takes milliseconds, but is not announced."""
TRIES = 5
"""Attempts to write the scale: the Deployment's controller writes to the same object whenever a pod changes, which
causes conflicts."""
COSTS_PER_PASS = 200
"""The maximum number of pods whose cost is written in one pass of the mode External: the API server has other
clients."""
COSTS_AT_ONCE = 20
"""The maximum number of costs that are written concurrently."""
REMOVAL_TIMEOUT = 60.0
"""Seconds after a decision to remove a pod within which a termination is attributed to it."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The pods that should terminate next, and all pods that existed when that was decided."""

    at: float
    victims: frozenset[str]
    pods: frozenset[str]


class ScaleExecutor:
    def __init__(self, cluster: Cluster, owner: Owner, metrics: GatewayMetrics) -> None:
        self._cluster = cluster
        self._owner = owner
        self._metrics = metrics
        self._removal: Removal | None = None

    async def execute(
        self,
        decision: Decision,
        fleet: FleetObservation,
        pods: Sequence[Object],
        spec: LinkGatewaySpec,
        report: PassReport,
        now: float,
    ) -> bool:
        """Writes what `decision` asks for; returns whether the scale was written."""
        if not writes_scale(spec):
            return False
        namespace, name = self._owner.namespace, self._owner.name
        try:
            if decision.action is Action.UP:
                await write_scale(self._cluster, namespace, name, fleet.replicas, decision.replicas)
            elif decision.action is Action.DOWN:
                await self._remove(decision, fleet, pods, now)
            else:
                if spec.scaling.mode is Mode.EXTERNAL and fleet.readable:
                    await self._write_costs(_rough_changes(pods, deletion_costs(fleet)))
                return False
        except (Conflict, NotFound) as e:
            logger.info("%s/%s: %s", namespace, name, e.message)
            self._removal = None
            return False
        except AccessDenied as e:
            self._removal = None
            report.conditions.set("ScalingActive", False, "AccessDenied", e.message)
            return False
        message = f"scaled from {fleet.replicas} to {decision.replicas} pods: {decision.reason}"
        report.add_event("ScaledUp" if decision.action is Action.UP else "ScaledDown", message)
        self._metrics.scaled(decision)
        return True

    def check_removal(self, fleet: FleetObservation, report: PassReport, now: float) -> None:
        """Reports if Kubernetes removed a pod other than the chosen ones."""
        removal = self._removal
        if removal is not None and now - removal.at > REMOVAL_TIMEOUT:
            removal = self._removal = None  # the scale was not written after all, or no pod terminated for it
        if removal is None:
            return
        removed = pods_removed(removal.pods, fleet)
        missing, others = removal.victims - removed, removed - removal.victims
        if missing and others:
            message = f"{_listed(missing)} should have terminated, but {_listed(others)} did"
            report.add_event("WrongPodRemoved", message, warning=True)
            self._metrics.wrong_removals.inc()
        if others or not missing:
            self._removal = None

    def forget_removal(self) -> None:
        """Stops checking the last removal: from now on pods may terminate for other reasons."""
        self._removal = None

    async def _remove(self, decision: Decision, fleet: FleetObservation, pods: Sequence[Object], now: float) -> None:
        existing = frozenset(pod.name for pod in fleet.pods if not pod.leaving)
        self._removal = Removal(now, frozenset(decision.victims), existing)
        await self._write_costs(removal_costs(_written_costs(pods), decision.victims))
        await asyncio.sleep(CACHE_DELAY)
        await write_scale(self._cluster, self._owner.namespace, self._owner.name, fleet.replicas, decision.replicas)

    async def _write_costs(self, costs: Mapping[str, int]) -> None:
        """Writes these costs, several concurrently. Raises the API server's errors, except that a pod is gone."""
        names = list(costs)
        for i in range(0, len(names), COSTS_AT_ONCE):
            patches = (self._write_cost(name, costs[name]) for name in names[i : i + COSTS_AT_ONCE])
            for failure in await asyncio.gather(*patches, return_exceptions=True):
                if failure is not None:
                    raise failure

    async def _write_cost(self, pod: str, cost: int) -> None:
        body = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
        with suppress(NotFound):  # it was deleted meanwhile
            await self._cluster.patch("Pod", self._owner.namespace, pod, body)


async def write_scale(cluster: Cluster, namespace: str, deployment: str, before: int, to: int) -> None:
    """Scales the Deployment to `to` pods. Raises Conflict when it does not ask for `before` pods any more."""
    for attempt in range(TRIES):
        found = await cluster.get("Deployment", namespace, deployment, "scale")
        replicas = int(found["spec"].get("replicas", 0))
        if replicas != before:
            raise Conflict(f"somebody else has scaled {deployment} to {replicas} replicas: the next pass decides anew")
        meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
        body = {"metadata": meta, "spec": {"replicas": to}}
        try:
            await cluster.patch("Deployment", namespace, deployment, body, "scale")
        except Conflict:
            if attempt == TRIES - 1:
                raise
        else:
            return


def pods_removed(before: frozenset[str], fleet: FleetObservation) -> frozenset[str]:
    """Those of `before` that are terminating or gone."""
    return before - {pod.name for pod in fleet.pods if not pod.leaving}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _written_cost(pod: Object) -> int | None:
    """The pod's deletion cost; None if it has none, or one that is not a number and that Kubernetes ignores."""
    written = (pod["metadata"].get("annotations") or {}).get(DELETION_COST)
    try:
        return None if written is None else int(written)
    except ValueError:
        return None


def _written_costs(pods: Iterable[Object]) -> dict[str, int]:
    return {pod["metadata"]["name"]: _written_cost(pod) or 0 for pod in pods}


def _rough_changes(pods: Iterable[Object], costs: Mapping[str, int]) -> dict[str, int]:
    """The costs that differ from the written ones by more than a tenth, up to a maximum number of them."""
    changes: dict[str, int] = {}
    for pod in pods:
        name, written = pod["metadata"]["name"], _written_cost(pod)
        if name in costs and len(changes) < COSTS_PER_PASS:
            cost = costs[name]
            if written is None or abs(written - cost) > max(10, cost % CLOSED_COST // 10):
                changes[name] = cost
    return changes
