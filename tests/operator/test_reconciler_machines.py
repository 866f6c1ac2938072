"""The machines under a fleet, against a real API server: what is read of them, and what a removal makes of it."""

from __future__ import annotations

from fairlead_operator.kube import rbac
from fairlead_operator.kube.rbac import PolicyRule

from support.operator_world import OperatorNamespace, condition


async def allow_in_the_cluster(world: OperatorNamespace, *rules: PolicyRule) -> None:
    """Sets the rights of the user `operator` that belong to no namespace."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "operator"}}
    said = [{"apiGroups": [group], "resources": list(kinds), "verbs": list(verbs)} for group, kinds, verbs in rules]
    await world.admin.apply({**role, "rules": said}, "test")


async def test_without_the_right_to_get_nodes_the_pass_goes_on_and_names_the_value_of_the_chart(
    world: OperatorNamespace,
) -> None:
    await allow_in_the_cluster(world, *rbac.INGRESS_CLASSES)
    reconciler = world.reconciler(await world.gateway())
    assert condition(await world.reconcile(reconciler), "NodesReadable") == ("True", "Readable", "")  # no pod has one
    for name in await world.run_pods(2):
        await world.place(name)
        await world.beat(name, 10)
    status = await world.reconcile(reconciler)
    held, reason, message = condition(status, "NodesReadable")
    assert (held, reason) == ("False", "AccessDenied")
    assert 'cannot get resource "nodes"' in message
    assert message.endswith("; operator.rbac.nodes of the chart grants the right to read them")
    assert condition(status, "ScalingActive")[:2] == ("True", "Stay")
    await allow_in_the_cluster(world, *rbac.CLUSTER)
    status = await world.reconcile(reconciler)
    assert condition(status, "NodesReadable") == ("True", "Readable", "")
