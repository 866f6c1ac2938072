"""The machines under a fleet, against a real API server: what is read of them, and what a removal makes of it."""

from __future__ import annotations

from fairlead_operator.kube import rbac
from fairlead_operator.kube.rbac import PolicyRule

from support.operator_namespace import OperatorNamespace, condition


async def allow_in_the_cluster(namespace: OperatorNamespace, *rules: PolicyRule) -> None:
    """Sets the rights of the user `operator` that belong to no namespace."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "operator"}}
    policy_rules = [
        {"apiGroups": [group], "resources": list(kinds), "verbs": list(verbs)} for group, kinds, verbs in rules
    ]
    await namespace.admin.apply({**role, "rules": policy_rules}, "test")


async def test_without_the_right_to_get_nodes_the_pass_goes_on_and_names_the_value_of_the_chart(
    namespace: OperatorNamespace,
) -> None:
    await allow_in_the_cluster(namespace, *rbac.INGRESS_CLASSES)
    reconciler = namespace.reconciler(await namespace.gateway())
    assert condition(await namespace.reconcile(reconciler), "NodesReadable") == (
        "True",
        "Readable",
        "",
    )  # no pod has one
    for name in await namespace.run_pods(2):
        await namespace.place(name)
        await namespace.beat(name, 10)
    status = await namespace.reconcile(reconciler)
    held, reason, message = condition(status, "NodesReadable")
    assert (held, reason) == ("False", "AccessDenied")
    assert 'cannot get resource "nodes"' in message
    assert message.endswith("; operator.rbac.nodes of the chart grants the right to read them")
    assert condition(status, "ScalingActive")[:2] == ("True", "Stay")
    await allow_in_the_cluster(namespace, *rbac.CLUSTER)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "NodesReadable") == ("True", "Readable", "")


async def machine(namespace: OperatorNamespace, name: str, zone: str) -> str:
    """Makes a machine of this test; returns its name."""
    name = f"{name}.{namespace.name}"
    meta = {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}
    await namespace.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await namespace.admin.patch("Node", "", name, status, "status")
    return name


async def beat_all(namespace: OperatorNamespace, links: dict[str, int]) -> None:
    for name, count in links.items():
        await namespace.beat(name, count)


async def terminating(namespace: OperatorNamespace) -> list[str]:
    return [pod["metadata"]["name"] for pod in await namespace.pods() if "deletionTimestamp" in pod["metadata"]]


async def budget(namespace: OperatorNamespace, *, expected: int) -> tuple[int, int] | None:
    """How many pods are healthy, and how many evictions the PodDisruptionBudget allows, once it counts `expected`."""
    status = (await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")).get("status", {})
    found = status.get("currentHealthy", 0), status.get("disruptionsAllowed", 0)
    return found if status.get("expectedPods") == expected else None


async def test_removal_takes_the_cordoned_machines_pod_then_one_of_the_fullest_zone_and_keeps_the_budget(
    namespace: OperatorNamespace,
) -> None:
    body = await namespace.gateway(replicas={"min": 4, "max": 10}, scaling={"stepDownSeconds": 10})
    reconciler = namespace.reconciler(body)
    await namespace.reconcile(reconciler)
    names = await namespace.run_pods(4)
    places = [await machine(namespace, *where) for where in (("m1", "a"), ("m2", "a"), ("m3", "b"), ("m4", "b"))]
    for name, place in zip(names, places, strict=True):
        await namespace.place(name, place)
    links = dict(zip(names, (10, 20, 300, 400), strict=True))
    await namespace.admin.patch("Node", "", places[3], {"spec": {"unschedulable": True}})
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 1, "max": 2}}})
    await beat_all(namespace, links)
    status = await namespace.reconcile(reconciler)
    expected = f"{names[3]} should go: its machine {places[3]} is cordoned"
    assert condition(status, "ScalingActive")[1] == "Down"
    assert condition(status, "ScalingActive")[2].endswith(expected)
    assert any(reason == "ScaledDown" and text.endswith(expected) for reason, text in await namespace.events())
    assert await namespace.until("the first pod to terminate", lambda: terminating(namespace)) == [names[3]]
    assert await namespace.until("the budget to count three", lambda: budget(namespace, expected=3)) == (3, 1)

    # It drains: nothing else is removed, however long that takes.
    await beat_all(namespace, links)
    assert condition(await namespace.reconcile(reconciler, seconds=60), "ScalingActive")[1] == "Stay"
    await namespace.end(names[3])
    del links[names[3]]
    await namespace.until("the pod to be gone", lambda: _counted(namespace, 3))

    # Two are left in zone a and one in b: of a's two the one with fewer links goes.
    await beat_all(namespace, links)
    status = await namespace.reconcile(reconciler, seconds=60)
    assert f"{names[0]} should go: the zone a has the most pods (2)" in condition(status, "ScalingActive")[2]
    assert await namespace.until("the second pod to terminate", lambda: terminating(namespace)) == [names[0]]
    assert await namespace.until("the budget to count two", lambda: budget(namespace, expected=2)) == (2, 1)
    assert not [reason for reason, _ in await namespace.events() if reason == "WrongPodRemoved"]


async def _counted(namespace: OperatorNamespace, count: int) -> bool:
    return len(await namespace.pods()) == count
