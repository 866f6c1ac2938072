"""One namespace of a real API server, and what a test does to it: as a user, as a kubelet, as the nodes in the pods.

The rows in Redis are written by the gateway's own code. The fixture `namespace` makes it; the test sets the
reconcilers' clock, so that no test waits for a window to pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.reports.traffic import COUNTERS, Traffic
from fairlead.store.pipeliner import Pipeliner
from fairlead_operator.api.policy import Policy
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.objects import Object, path
from fairlead_operator.kube.rbac import PolicyRule
from fairlead_operator.metrics import Metrics
from fairlead_operator.resources.owner import Owner
from fairlead_operator.runtime.reconciler import Reconciler

ANYTHING = Policy(
    **{name: ("*",) for name in Policy.__struct_fields__ if name != "containers"},
    containers=True,
)
"""For tests that are not about the policy."""


def condition(status: Object, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of one condition."""
    (found,) = (one for one in status["conditions"] if one["type"] == kind)
    return found["status"], found["reason"], found["message"]


@dataclass
class OperatorNamespace:
    """One namespace, and everything that a test does to it. The test advances `now`, the reconcilers' clock."""

    admin: Cluster
    operator: Cluster
    """As the user `operator`, which has only the rights of the table."""
    name: str
    store: Pipeliner
    redis: str
    metrics: Metrics = field(default_factory=Metrics)
    now: float = 1000.0
    reconcilers: list[Reconciler] = field(default_factory=list)

    def spec(self, **more: object) -> Object:
        return {
            "image": "fairlead/gateway:test",
            "capacity": 1000,
            "replicas": {"min": 2, "max": 10},
            "redis": {"secretRef": {"name": "redis"}},
            "tokens": {"secretRef": {"name": "tokens"}},
            **more,
        }

    async def gateway(self, name: str = "edge", **more: object) -> Object:
        """Creates a LinkGateway as a user does; what is given replaces the defaults of `spec`."""
        return await self.admin.create(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "LinkGateway",
                "metadata": {"name": name, "namespace": self.name},
                "spec": self.spec(**more),
            }
        )

    def reconciler(self, body: Object, cluster: Cluster | None = None, policy: Policy = ANYTHING) -> Reconciler:
        meta = body["metadata"]
        owner = Owner(meta["name"], meta["namespace"], meta["uid"])
        made = Reconciler(cluster or self.operator, owner, policy, self.metrics)
        self.reconcilers.append(made)
        return made

    async def reconcile(self, reconciler: Reconciler, name: str = "edge", seconds: float = 10.0) -> Object:
        """One pass, `seconds` after the last; returns the status after it."""
        self.now += seconds
        everyone = await self.admin.items("LinkGateway", self.name)
        (body,) = (one for one in everyone if one["metadata"]["name"] == name)
        found = await self.admin.items("LinkOperation", self.name)
        operations = [one for one in found if one["spec"]["gateway"]["name"] == name]
        await reconciler.reconcile(body, [one for one in everyone if one is not body], self.now, operations)
        status: Object = (await self.admin.get("LinkGateway", self.name, name)).get("status", {})
        return status

    async def operate(self, name: str, *, gateway: str = "edge", **more: object) -> Object:
        """Creates a LinkOperation as a user does."""
        return await self.admin.create(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "LinkOperation",
                "metadata": {"name": name, "namespace": self.name},
                "spec": {"gateway": {"name": gateway}, **more},
            }
        )

    async def operation(self, name: str) -> Object:
        """The status of a LinkOperation."""
        found = await self.admin.get("LinkOperation", self.name, name)
        status: Object = found.get("status", {})
        return status

    async def place(self, pod: str, machine: str = "some-node") -> None:
        """Plays the scheduler: from now on a deletion waits for the kubelet."""
        where = path("Pod", self.name, pod, "binding")
        body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": machine}}
        await self.admin._write("POST", where, {**body, "metadata": {"name": pod}}, "application/json", {})

    async def end(self, pod: str) -> None:
        """Plays the kubelet when the containers have ended."""
        where = path("Pod", self.name, pod)
        await self.admin._write("DELETE", where, {"gracePeriodSeconds": 0}, "application/json", {})

    async def pods(self) -> list[Object]:
        found = await self.admin.items("Pod", self.name)
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    async def run_pods(self, count: int) -> list[str]:
        """Waits for that many pods and plays their kubelet: they run and are ready. Returns their names."""
        pods = await self.until(f"{count} pods", lambda: self._exactly(count))
        for pod in pods:
            await self.run(pod["metadata"]["name"])
        await self.until("the Deployment to count them", lambda: self._ready(count))
        return [pod["metadata"]["name"] for pod in pods]

    async def run(self, pod: str, *, ready: bool = True, since: str = "2026-01-01T00:00:00Z") -> None:
        """Plays the kubelet: the pod runs, and is ready or is not."""
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        await self.admin.patch("Pod", self.name, pod, status, "status")

    async def _exactly(self, count: int) -> list[Object] | None:
        found = await self.pods()
        return found if len(found) == count else None

    async def _ready(self, count: int) -> bool:
        status = (await self.deployment()).get("status", {})
        return bool(status.get("readyReplicas", 0) == count == status.get("updatedReplicas", 0))

    async def deployment(self, name: str = "edge") -> Object:
        return await self.admin.get("Deployment", self.name, name)

    async def beat(
        self,
        node: str,
        connections: int,
        *,
        capacity: int = 1000,
        in_flight: int = 0,
        refused: int = 0,
        left: int = 0,
        moved: int = 0,
        cpu: float = 0.0,
        memory: float = 0.0,
        lag_ms: float = 0.0,
        spare_accept_rate: float = 200.0,
        excluded_by: str = "",
        traffic: Traffic | None = None,
    ) -> None:
        """Writes the row of the pod's node. `traffic`: what it has served since its start."""
        counts: dict[str, str | int | float] = {
            "state": "serving", "links": connections, "capacity": capacity, "accepted": 0, "refused": refused,
            "lag_ms": lag_ms, "in_flight": in_flight, "version": "test", "moved": moved, "left": left,
            "cpu": cpu, "memory": memory,
            "spare_accept_rate": spare_accept_rate, "excluded_by": excluded_by,
        }  # fmt: skip
        if traffic is not None:
            counts |= {name: getattr(traffic, name) for name in COUNTERS}
            counts["overheads"] = ",".join(map(str, traffic.overheads))
        await NodeRows(self.store).renew(node, f"epoch-of-{node}", counts, begin=True)

    async def until(self, what: str, condition: Callable[[], Any], seconds: float = 30) -> Any:
        """Waits until `condition` returns something, and returns that."""
        deadline = time.monotonic() + seconds
        while not (found := await condition()):
            assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
            await asyncio.sleep(0.05)
        return found

    async def events(self, kind: str = "LinkGateway") -> list[tuple[str, str]]:
        """Reasons and messages of the Events about this kind."""
        found = await self.admin.items("Event", self.name)
        return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["kind"] == kind]

    async def allow(self, *rules: PolicyRule, without: tuple[str, str] = ("", "")) -> None:
        """Sets the rights of the user `operator` in this namespace; `without` removes a resource's verb."""
        policy_rules = [
            {"apiGroups": [group], "resources": [kind], "verbs": left}
            for group, kinds, verbs in rules
            for kind in kinds
            if (left := [verb for verb in verbs if (kind, verb) != without])
        ]
        await self.admin.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": {"name": "operator", "namespace": self.name},
                "rules": policy_rules,
            },
            "test",
        )
