"""The conditions of one LinkGateway against a real API server: each names what is wrong, and where."""

from __future__ import annotations

import pytest

from fairlead_operator.kube.errors import ApiServerRefused
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED, PolicyRule
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import OperatorNamespace, condition


async def test_unreachable_redis_holds_the_replicas(namespace: OperatorNamespace) -> None:
    body = await namespace.gateway(redis={"url": "redis://127.0.0.1:1"})
    reconciler = namespace.reconciler(body)
    await namespace.reconcile(reconciler)
    await namespace.run_pods(2)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "RedisReachable")[:2] == ("False", "Unreachable")
    assert condition(status, "ScalingActive")[:2] == ("False", "Holding")
    assert status["phase"] == "Holding"
    assert condition(status, "Ready")[0] == "True"


async def test_missing_secret_is_named_and_then_found(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(redis={"secretRef": {"name": "where"}}))
    status = await namespace.reconcile(reconciler)
    assert condition(status, "SecretsFound") == (
        "False",
        "NotFound",
        f"the Secret where does not exist in {namespace.name}",
    )
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "where", "namespace": namespace.name}}
    await namespace.admin.create({**secret, "stringData": {"address": namespace.redis}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "SecretsFound")[2] == "the Secret where has no key url"
    await namespace.admin.patch("Secret", namespace.name, "where", {"stringData": {"url": "not an address"}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "RedisReachable")[:2] == ("False", "Unusable")
    await namespace.admin.patch("Secret", namespace.name, "where", {"stringData": {"url": namespace.redis}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "RedisReachable")[:2] == ("True", "Reachable")


async def test_wrong_redis_password_is_reported_and_not_quoted(namespace: OperatorNamespace) -> None:
    wrong = f"redis://:the-wrong-one@{namespace.redis.rpartition('@')[2]}"
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "where", "namespace": namespace.name}}
    await namespace.admin.create({**secret, "stringData": {"url": wrong}})
    status = await namespace.reconcile(
        namespace.reconciler(await namespace.gateway(redis={"secretRef": {"name": "where"}}))
    )
    held, _, message = condition(status, "RedisReachable")
    assert held == "False"
    assert "the-wrong-one" not in str(status)
    assert "AUTH" in message or "password" in message


async def test_pods_are_counted_while_the_token_secret_is_missing(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    secret = await namespace.admin.get("Secret", namespace.name, "tokens")
    await namespace.admin.delete("Secret", namespace.name, "tokens", secret["metadata"]["uid"])
    status = await namespace.reconcile(reconciler)
    assert condition(status, "SecretsFound") == (
        "False",
        "NotFound",
        f"the Secret tokens does not exist in {namespace.name}",
    )
    assert condition(status, "RedisReachable")[:2] == ("True", "Reachable")


async def test_missing_ingress_class_is_reported(namespace: OperatorNamespace) -> None:
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(ingress={"className": "nothing"})))
    held, reason, message = condition(status, "IngressClassFound")
    assert (held, reason) == ("False", "NotFound")
    assert "the IngressClass nothing does not exist" in message


async def running(namespace: OperatorNamespace, asked: int, reported: int) -> Reconciler:
    """The status of a LinkGateway whose pods report another capacity than the spec asks for."""
    reconciler = namespace.reconciler(await namespace.gateway(capacity=asked))
    await namespace.reconcile(reconciler)
    for name in await namespace.run_pods(2):
        await namespace.beat(name, 10, capacity=reported)
    return reconciler


async def test_capacity_limited_by_open_files_is_reported(namespace: OperatorNamespace) -> None:
    status = await namespace.reconcile(await running(namespace, asked=5000, reported=488))
    held, reason, message = condition(status, "CapacityAsRequested")
    assert (held, reason) == ("False", "FileLimit")
    assert "only 488 links of the requested 5000" in message


async def test_capacity_is_unknown_during_a_rollout(namespace: OperatorNamespace) -> None:
    reconciler = await running(namespace, asked=1000, reported=1000)
    assert condition(await namespace.reconcile(reconciler), "CapacityAsRequested")[0] == "True"
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"capacity": 2000}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Progressing")[:2] == ("True", "Rollout")
    assert "CapacityAsRequested" not in [one["type"] for one in status["conditions"]]


BACK_OFF = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "fairlead/gateway:nowhere"'}
ENDED = {"exitCode": 2, "reason": "Error", "message": "{...}\nFAIRLEAD_REDIS: not an address\n"}


@pytest.mark.parametrize(
    ("container", "reason", "why"),
    [
        ({"state": {"waiting": BACK_OFF}}, "ImagePullBackOff", BACK_OFF["message"]),
        (
            {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "lastState": {"terminated": ENDED}},
            "Crashing",
            "its container exited with code 2 and restarts: FAIRLEAD_REDIS: not an address",
        ),
    ],
)
async def test_pods_running_says_why_pods_do_not_run(
    namespace: OperatorNamespace, container: Object, reason: str, why: str
) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    assert condition(await namespace.reconcile(reconciler), "PodsRunning")[0] == "True"
    _, other = await namespace.run_pods(2)
    container_status = {
        "name": "gateway",
        "image": "i",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 3,
    }
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    status = {"status": {"conditions": conditions, "containerStatuses": [{**container_status, **container}]}}
    await namespace.admin.patch("Pod", namespace.name, other, status, "status")
    for _ in range(2):
        assert condition(await namespace.reconcile(reconciler), "PodsRunning") == ("False", reason, f"{other}: {why}")
    assert [text for kind, text in await namespace.events() if kind == reason] == [f"PodsRunning: {other}: {why}"]
    await namespace.run(other)
    assert condition(await namespace.reconcile(reconciler), "PodsRunning")[0] == "True"


async def test_pods_running_says_why_pods_cannot_be_created(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(pod={"priorityClassName": "nothing"}))

    async def reported() -> bool:
        held, reason, message = condition(await namespace.reconcile(reconciler), "PodsRunning")
        return (held, reason) == ("False", "FailedCreate") and "no PriorityClass with name nothing" in message

    await namespace.until("the reason", reported)


async def test_second_gateway_of_one_redis_is_not_accepted(namespace: OperatorNamespace) -> None:
    first = await namespace.gateway("first")
    second = await namespace.gateway("second")
    age = sorted([first, second], key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["uid"]))
    older, younger = (one["metadata"]["name"] for one in age)
    status = await namespace.reconcile(namespace.reconciler(age[1]), younger)
    held, reason, message = condition(status, "Accepted")
    assert (held, reason) == ("False", "RedisInUse")
    assert f"the LinkGateway {older} of this namespace already uses this Redis" in message
    assert await namespace.admin.find("Deployment", namespace.name, younger) is None
    assert condition(await namespace.reconcile(namespace.reconciler(age[0]), older), "Accepted")[0] == "True"


async def test_http_route_without_the_gateway_api_is_reported(namespace: OperatorNamespace) -> None:
    route = {"parentRefs": [{"name": "front"}]}
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(httpRoute=route)))
    assert condition(status, "Reconciled")[:2] == ("False", "KindNotFound")
    assert (await namespace.deployment())["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    "lost",
    [
        rule
        for rule in NAMESPACED
        # Missing rights on LinkOperations are reported by those: test_operations.
        if rule[0] != "fairlead.dev" and rule[1] not in (("events",), ("pods/eviction",))
    ],
    ids=lambda rule: rule[1][0],
)
async def test_missing_right_is_named(namespace: OperatorNamespace, lost: PolicyRule) -> None:
    _, kinds, _ = lost
    await namespace.allow(*(rule for rule in NAMESPACED if rule != lost), *LEASE)
    more: Object = {"ingress": {}} if "ingresses" in kinds else {}
    if "controllerrevisions" in kinds:
        more = {"rollout": {"canary": {}}}
    if "httproutes" in kinds:
        more = {"httpRoute": {"parentRefs": [{"name": "front"}]}}
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(**more)))
    messages = [one["message"] for one in status["conditions"] if one["reason"] in ("AccessDenied", "Unreadable")]
    assert any(kind.partition("/")[0] in text and "cannot" in text for text in messages for kind in kinds), messages


# -- what the API server itself refuses ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"replicas": {"min": 3, "max": 2}}, "replicas.min must not be greater"),
        ({"redis": {}}, "exactly one of url and secretRef"),
        ({"redis": {"url": "redis://r", "secretRef": {"name": "s"}}}, "exactly one of url and secretRef"),
        ({"capacity": 100_000, "moves": {"maxPerSecond": 10}, "drain": {"maxSeconds": 60}}, "could not drain in time"),
        ({"capacity": 0}, "greater than or equal to 1"),
        ({"scaling": {"mode": "Sometimes"}}, "Unsupported value"),
        ({"image": ""}, "at least 1 chars"),
        ({"resources": {"requests": {"cpu": "banana"}}}, "spec.resources.requests.cpu"),
        ({"redis": {"url": "redis://r", "caSecretRef": {"name": "ca"}}}, "needs a rediss:// URL"),
        ({"redis": {"url": "redis://:word@r"}}, "spec.redis.url"),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}, "no pod could ever be replaced"),
        ({"rollingUpdate": {"maxSurge": "some"}}, "spec.rollingUpdate.maxSurge"),
        ({"pod": {"env": [{"name": "FAIRLEAD_NODE", "value": "x"}]}}, "pod.env must not set"),
        ({"ingress": {"hosts": ["A.test"]}}, "spec.ingress.hosts"),
        ({"linkTls": {"secretName": "c"}, "ingress": {}}, "linkTls needs ingress and httpRoute to be off"),
        ({"services": {"agents": {"type": "ExternalName"}}}, "Unsupported value"),
    ],
)
async def test_invalid_specs_are_refused_by_the_api_server(
    namespace: OperatorNamespace, spec: Object, why: str
) -> None:
    with pytest.raises(ApiServerRefused, match=why):
        await namespace.gateway(**spec)


@pytest.mark.parametrize(
    ("name", "why"), [("e" * 41, "40 characters"), ("edge.eu", "contain no dots"), ("1edge", "begin with a letter")]
)
async def test_invalid_names_are_refused_by_the_api_server(namespace: OperatorNamespace, name: str, why: str) -> None:
    with pytest.raises(ApiServerRefused, match=why):
        await namespace.gateway(name)


async def test_child_that_the_api_server_refuses_is_reported_as_invalid(namespace: OperatorNamespace) -> None:
    """A limit below its request is refused with 422, an invalid toleration with 500; the CRD allows both."""
    few = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(resources=few)))
    held, reason, message = condition(status, "Reconciled")
    assert (held, reason) == ("False", "Invalid")
    assert "memory" in message
    other = await namespace.gateway("other", redis={"url": "redis://127.0.0.1:1"}, pod={"tolerations": [{"key": 5}]})
    held, reason, message = condition(await namespace.reconcile(namespace.reconciler(other), "other"), "Reconciled")
    assert (held, reason) == ("False", "Invalid"), message


async def test_pods_running_is_unknown_while_a_container_starts_slowly(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    pod, other = await namespace.run_pods(2)
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    container_status = {
        "name": "gateway",
        "image": "i",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
    }
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    starting = {
        "phase": "Pending",
        "conditions": conditions,
        "containerStatuses": [{**container_status, "state": waiting}],
    }
    await namespace.admin.patch("Pod", namespace.name, pod, {"status": starting}, "status")
    assert condition(await namespace.reconcile(reconciler), "PodsRunning")[:2] == ("True", "NoProblemFound")
    held, reason, message = condition(await namespace.reconcile(reconciler), "PodsRunning")
    assert (held, reason) == ("Unknown", "ContainerCreating")
    assert message.startswith(
        f"{pod} has not started for more than 10 s: its image is being pulled, or one of its volumes, Secret"
    )
    await namespace.run(pod)
    await namespace.admin.patch(
        "Pod", namespace.name, pod, {"status": {"containerStatuses": [{**container_status, "state": {}}]}}, "status"
    )
    assert condition(await namespace.reconcile(reconciler), "PodsRunning")[:2] == ("True", "NoProblemFound")
    assert other != pod
