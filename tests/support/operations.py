"""A settled fleet on a real API server, and what the status of an operation says: for the tests of LinkOperations."""

from __future__ import annotations

from fairlead_operator.kube.objects import Object
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import OperatorNamespace


async def settled_fleet(namespace: OperatorNamespace, count: int = 2, **more: object) -> tuple[Reconciler, list[str]]:
    """A settled fleet whose pods are scheduled and have some links."""
    reconciler = namespace.reconciler(await namespace.gateway("edge", replicas={"min": count, "max": 9}, **more))
    await namespace.reconcile(reconciler)
    names = await namespace.run_pods(count)
    for i, name in enumerate(names):
        await namespace.place(name)
        await namespace.beat(name, 100 + i)
    await namespace.reconcile(reconciler)

    async def allowed() -> bool:
        budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
        return bool(budget.get("status", {}).get("disruptionsAllowed") == 1)

    await namespace.until("the budget to allow an eviction", allowed)
    return reconciler, names


def condition(status: Object, kind: str) -> tuple[str, str]:
    (found,) = (one for one in status["conditions"] if one["type"] == kind)
    return found["status"], found["reason"]


async def leaving_pods(namespace: OperatorNamespace) -> set[str]:
    return {pod["metadata"]["name"] for pod in await namespace.pods() if "deletionTimestamp" in pod["metadata"]}
