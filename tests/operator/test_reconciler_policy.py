"""A LinkGateway that asks for more than the policy allows, against a real API server: reported, and not applied."""

from __future__ import annotations

from typing import Any

from fairlead_operator.api.policy import DEFAULT_POLICY, SECRET_LABEL
from fairlead_operator.kube.rbac import LEASE, NAMESPACED

from support.operator_namespace import OperatorNamespace, condition


async def secret(namespace: OperatorNamespace, name: str, **data: str) -> None:
    meta = {"name": name, "namespace": namespace.name}
    await namespace.admin.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})


async def test_policy_violation_is_reported_and_nothing_is_created(namespace: OperatorNamespace) -> None:
    """Otherwise anyone who may create a LinkGateway could run any image with any Secret of the namespace."""
    await secret(namespace, "payroll", password="hunter2")
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "payroll", "key": "password"}}}]
    pod: dict[str, Any] = {"env": env, "priorityClassName": "system-node-critical"}
    body = await namespace.gateway(image="evil.test/x:1", pod=pod, ingress={"hosts": ["bank.test"]})
    status = await namespace.reconcile(namespace.reconciler(body, policy=DEFAULT_POLICY))
    held, reason, message = condition(status, "Accepted")
    assert (held, reason) == ("False", "PolicyViolation")
    for words in (
        "image evil.test/x:1: its repository is not allowed",
        f"the Secret payroll is not available to LinkGateways: it does not have the label {SECRET_LABEL}=true",
        "pod.priorityClassName system-node-critical is not allowed",
        "ingress: the host bank.test is not allowed",
    ):
        assert words in message
    assert status["phase"] == "Invalid"
    for kind in ("Deployment", "Ingress", "ServiceAccount"):
        assert await namespace.admin.find(kind, namespace.name, "edge") is None
    assert ("PolicyViolation", f"Accepted: {message}") in await namespace.events()


async def test_policy_violation_leaves_running_pods_alone(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(), policy=DEFAULT_POLICY)
    await namespace.reconcile(reconciler)
    await namespace.run_pods(2)
    before = await namespace.deployment()
    for wrong in ({"image": "evil.test/x:1"}, {"tokens": {"secretRef": {"name": "payroll"}}}):
        await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": wrong})
        assert condition(await namespace.reconcile(reconciler, seconds=60), "Accepted")[:2] == (
            "False",
            "PolicyViolation",
        )
    assert (await namespace.deployment())["spec"] == before["spec"]
    right = {"image": "fairlead/gateway:test", "tokens": {"secretRef": {"name": "tokens"}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": right})
    assert condition(await namespace.reconcile(reconciler), "Accepted")[:2] == ("True", "Valid")


async def test_secret_is_used_when_it_has_the_label(namespace: OperatorNamespace) -> None:
    await secret(namespace, "where", url=namespace.redis)
    reconciler = namespace.reconciler(
        await namespace.gateway(redis={"secretRef": {"name": "where"}}), policy=DEFAULT_POLICY
    )
    assert condition(await namespace.reconcile(reconciler), "Accepted")[:2] == ("False", "PolicyViolation")
    await namespace.admin.patch("Secret", namespace.name, "where", {"metadata": {"labels": {SECRET_LABEL: "true"}}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Accepted")[:2] == ("True", "Valid")
    assert condition(status, "RedisReachable")[:2] == ("True", "Reachable")


async def test_secret_that_may_not_be_read_is_not_mounted(namespace: OperatorNamespace) -> None:
    await namespace.allow(*(rule for rule in NAMESPACED if "secrets" not in rule[1]), *LEASE)
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(), policy=DEFAULT_POLICY))
    held, reason, message = condition(status, "Accepted")
    assert (held, reason) == ("False", "PolicyViolation")
    assert "the Secret tokens does not exist, or the operator is not allowed to read it" in message
    assert "operator.rbac.secretNames" in message
