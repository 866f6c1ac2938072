"""One LinkGateway against a real API server: child objects, drift, scaling, and the pod that is removed."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_operator.autoscaler.rules import RULES
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import Conflict, NotLeader
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED
from fairlead_operator.runtime.scale_executor import DELETION_COST, write_scale

from support.operator_namespace import OperatorNamespace, condition


async def test_first_pass_creates_the_children_and_the_least_number_of_pods(namespace: OperatorNamespace) -> None:
    body = await namespace.gateway(
        moves={"maxPerSecond": 50},
        ingress={"className": "traefik", "host": "edge.test"},
        networkPolicy={"enabled": True},
    )
    reconciler = namespace.reconciler(body)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Reconciled") == ("True", "Applied", "")
    assert status["decision"]["action"] == "Up"
    assert status["decision"]["reason"] == "replicas.min asks for 2 pods"
    deployment = await namespace.deployment()
    template = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 2
    assert template["terminationGracePeriodSeconds"] == 1000 / 50 + 60 + 30
    env = {one["name"]: one.get("value") for one in template["containers"][0]["env"]}
    assert (env["FAIRLEAD_REDIS_FILE"], env["FAIRLEAD_DRAIN_TIMEOUT"]) == ("/etc/fairlead/redis/url", "80")
    for kind, name in (
        ("Service", "edge-agents"), ("Service", "edge-platform"), ("Service", "edge-metrics"),
        ("PodDisruptionBudget", "edge"), ("ServiceAccount", "edge"), ("Ingress", "edge"), ("NetworkPolicy", "edge"),
    ):  # fmt: skip
        child = await namespace.admin.get(kind, namespace.name, name)
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == body["metadata"]["uid"]
    await namespace.run_pods(2)
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    assert (status["readyReplicas"], status["phase"]) == (2, "Ready")
    assert status["observedGeneration"] == 1


async def test_what_the_deployment_controller_writes_meanwhile_is_no_drift(
    namespace: OperatorNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    apply = namespace.operator.apply

    async def a_moment_later(body: Object) -> Object:
        if body["kind"] == "Deployment":
            revision = {"metadata": {"annotations": {"deployment.kubernetes.io/revision": "99"}}}
            await namespace.admin.patch("Deployment", namespace.name, "edge", revision)
        return await apply(body)

    monkeypatch.setattr(namespace.operator, "apply", a_moment_later)
    await namespace.reconcile(reconciler, seconds=31)
    assert [text for reason, text in await namespace.events() if reason == "Repaired"] == []


async def test_drift_is_repaired_and_additions_of_others_stay(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    restarted = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}
    await namespace.admin.patch("Deployment", namespace.name, "edge", restarted)
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"minReadySeconds": 77}})
    await namespace.admin.patch("Service", namespace.name, "edge-agents", {"spec": {"selector": {"app": "another"}}})
    await namespace.reconcile(reconciler, seconds=31)
    deployment = await namespace.deployment()
    assert deployment["spec"]["minReadySeconds"] == 30
    assert "kubectl.kubernetes.io/restartedAt" in deployment["spec"]["template"]["metadata"]["annotations"]
    service = await namespace.admin.get("Service", namespace.name, "edge-agents")
    assert service["spec"]["selector"]["fairlead.dev/gateway"] == "edge"
    messages = [text for reason, text in await namespace.events() if reason == "Repaired"]
    assert len(messages) == 2
    assert "Deployment edge had been changed; restored: spec.minReadySeconds" in messages
    assert any(
        text.startswith("Service edge-agents had been changed; restored: spec.selector.app") for text in messages
    )
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 3}}, "scale")
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"capacity": 900}})
    await namespace.reconcile(reconciler, seconds=31)
    await namespace.reconcile(reconciler, seconds=31)
    assert [reason for reason, _ in await namespace.events()].count("Repaired") == 2


async def test_deleted_service_is_created_again(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    service = await namespace.admin.get("Service", namespace.name, "edge-agents")
    await namespace.admin.delete("Service", namespace.name, "edge-agents", service["metadata"]["uid"])
    status = await namespace.reconcile(reconciler, seconds=31)
    again = await namespace.admin.get("Service", namespace.name, "edge-agents")
    assert again["metadata"]["uid"] != service["metadata"]["uid"]
    assert again["spec"]["selector"] == service["spec"]["selector"]
    assert condition(status, "Reconciled")[:2] == ("True", "Applied")
    assert ("Repaired", "Service edge-agents had been deleted and was created again") in await namespace.events()


async def test_child_that_the_spec_no_longer_asks_for_is_removed(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(ingress={"hosts": ["edge.test"]}))
    await namespace.reconcile(reconciler)
    assert await namespace.admin.find("Ingress", namespace.name, "edge")
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"ingress": {"enabled": False}}})
    await namespace.reconcile(reconciler)
    assert await namespace.admin.find("Ingress", namespace.name, "edge") is None


async def test_child_that_may_not_be_removed_is_reported(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(ingress={"hosts": ["edge.test"]}))
    await namespace.reconcile(reconciler)
    await namespace.allow(*NAMESPACED, *LEASE, without=("ingresses", "delete"))
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"ingress": {"enabled": False}}})
    held, reason, message = condition(await namespace.reconcile(reconciler), "Reconciled")
    assert (held, reason) == ("False", "AccessDenied")
    assert 'cannot delete resource "ingresses"' in message
    await namespace.allow(*NAMESPACED, *LEASE)
    assert condition(await namespace.reconcile(reconciler), "Reconciled")[:2] == ("True", "Applied")
    assert await namespace.admin.find("Ingress", namespace.name, "edge") is None


async def test_object_of_another_owner_is_not_changed(namespace: OperatorNamespace) -> None:
    theirs: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "edge", "labels": {"a": "b"}}}
    theirs["metadata"]["namespace"] = namespace.name
    before = await namespace.admin.create(theirs)
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway()))
    held, reason, message = condition(status, "Reconciled")
    assert (held, reason) == ("False", "Refused")
    assert "ServiceAccount edge already exists and belongs to another owner" in message
    after = await namespace.admin.get("ServiceAccount", namespace.name, "edge")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_deployment_of_another_owner_is_neither_scaled_nor_restarted(namespace: OperatorNamespace) -> None:
    labels = {"app": "theirs"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "one", "image": "theirs"}]}}
    theirs = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    meta = {"name": "edge", "namespace": namespace.name}
    before = await namespace.admin.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": theirs}
    )
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.operate("again", type="Restart")
    for _ in range(2):
        status = await namespace.reconcile(reconciler)
    assert status["phase"] == "Degraded"
    held, _, message = condition(status, "Ready")
    assert held == "False"
    assert "Deployment edge already exists and belongs to another owner" in message
    assert (await namespace.deployment())["spec"] == before["spec"]


async def test_children_are_deleted_with_their_gateway(namespace: OperatorNamespace) -> None:
    body = await namespace.gateway()
    await namespace.reconcile(namespace.reconciler(body))
    assert "finalizers" not in (await namespace.admin.get("LinkGateway", namespace.name, "edge"))["metadata"]
    await namespace.admin.delete("LinkGateway", namespace.name, "edge", body["metadata"]["uid"])
    assert await namespace.admin.find("LinkGateway", namespace.name, "edge") is None

    async def gone() -> bool:
        return await namespace.admin.find("Deployment", namespace.name, "edge") is None

    await namespace.until("the Deployment to go with its owner", gone)


async def test_reported_links_scale_the_deployment(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    for name in await namespace.run_pods(2):
        await namespace.beat(name, 900)
    status = await namespace.reconcile(reconciler)
    assert (status["links"], status["utilisationPercent"], status["skew"]) == (1800, 90, "1.00")
    assert (status["decision"]["winner"], status["desiredReplicas"]) == ("utilisation", 3)
    asked = {rule["name"]: rule["replicas"] for rule in status["decision"]["rules"]}
    assert list(asked) == [rule.name for rule in RULES]
    assert (asked["utilisation"], asked["failureTolerance"], asked["reconnect"]) == (3, 3, 1)
    assert status["decision"]["bounds"] == {"min": 2, "max": 10}
    assert status["decision"]["inputs"]["fresh"] == 2
    assert (await namespace.deployment())["spec"]["replicas"] == 3
    assert any(reason == "ScaledUp" and "from 2 to 3 pods" in text for reason, text in await namespace.events())


async def shrinking(namespace: OperatorNamespace, links: dict[int, int], **more: object) -> tuple[list[str], Object]:
    """Four pods where two suffice, observed for a whole window; returns their names and the status after it."""
    reconciler = namespace.reconciler(
        await namespace.gateway(
            scaling={"windowSeconds": 30, "stepDownSeconds": 10, **more}, replicas={"min": 2, "max": 9}
        )
    )
    await namespace.reconcile(reconciler)
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 4}}, "scale")
    names = await namespace.run_pods(4)
    status: Object = {}
    for _ in range(5):
        for i, name in enumerate(names):
            await namespace.beat(name, links[i])
        status = await namespace.reconcile(reconciler)
        if status["desiredReplicas"] < 4:
            break
    return names, status


async def test_scale_down_removes_the_emptiest_pod(namespace: OperatorNamespace) -> None:
    names, status = await shrinking(namespace, {0: 100, 1: 120, 2: 3, 3: 110})
    assert (status["decision"]["action"], status["desiredReplicas"]) == ("Down", 3)

    async def fewer() -> list[str] | None:
        left = [pod["metadata"]["name"] for pod in await namespace.pods()]
        return left if len(left) == 3 else None

    assert await namespace.until("one pod to go", fewer) == sorted(set(names) - {names[2]})
    annotated = [pod for pod in await namespace.pods() if DELETION_COST in pod["metadata"].get("annotations", {})]
    assert annotated == [], "only the pod that went has got a cost"
    status = await namespace.reconcile(namespace.reconcilers[0])
    assert not [reason for reason, _ in await namespace.events() if reason == "WrongPodRemoved"]
    assert any(reason == "ScaledDown" and names[2] in text for reason, text in await namespace.events())


async def test_a_large_fleet_loses_two_pods_in_one_step_and_these_two(namespace: OperatorNamespace) -> None:
    """Of forty pods a twentieth may go at once; Kubernetes then removes those whose deletion costs are the least."""
    body = await namespace.gateway(
        replicas={"min": 40, "max": 50}, scaling={"windowSeconds": 30, "stepDownSeconds": 10}
    )
    reconciler = namespace.reconciler(body)
    await namespace.reconcile(reconciler)
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 40}}, "scale")
    names = await namespace.run_pods(40)
    links = {name: 100 + i for i, name in enumerate(reversed(names))}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 2}}})
    status: Object = {}
    for _ in range(6):
        for name in names:
            await namespace.beat(name, links[name])
        status = await namespace.reconcile(reconciler)
        if status["desiredReplicas"] < 40:
            break
    assert (status["decision"]["action"], status["desiredReplicas"]) == ("Down", 38)
    first, second = names[-1], names[-2]
    assert f"2 pods should go, {first} first" in status["decision"]["reason"]

    async def fewer() -> set[str] | None:
        left = {pod["metadata"]["name"] for pod in await namespace.pods()}
        return left if len(left) == 38 else None

    assert await namespace.until("two pods to go", fewer) == set(names) - {first, second}
    await namespace.reconcile(reconciler)
    assert not [reason for reason, _ in await namespace.events() if reason == "WrongPodRemoved"]


async def test_removal_of_another_pod_is_reported(namespace: OperatorNamespace) -> None:
    names, _ = await shrinking(namespace, {0: 100, 1: 120, 2: 3, 3: 110}, mode="DryRun")
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"scaling": {"mode": "Auto"}}})
    for i, name in enumerate(names):
        await namespace.beat(name, (100, 120, 3, 110)[i])
    taken = asyncio.create_task(namespace.reconcile(namespace.reconcilers[0], seconds=11))

    async def chosen() -> bool:
        return any(DELETION_COST in one["metadata"].get("annotations", {}) for one in await namespace.pods())

    await namespace.until("the deletion costs", chosen)
    # Between the choice and the scale another pod becomes unready, and Kubernetes removes those first.
    ill = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await namespace.admin.patch("Pod", namespace.name, names[1], ill, "status")
    assert (await taken)["desiredReplicas"] == 3

    async def gone() -> bool:
        return len(await namespace.pods()) == 3

    await namespace.until("one pod to go", gone)
    await namespace.reconcile(namespace.reconcilers[0])
    assert ("WrongPodRemoved", f"{names[2]} should have terminated, but {names[1]} did") in await namespace.events()


async def test_external_mode_leaves_the_scale_alone_and_keeps_the_costs_up_to_date(
    namespace: OperatorNamespace,
) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(scaling={"mode": "External"}))
    await namespace.reconcile(reconciler)
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 3}}, "scale")
    names = await namespace.run_pods(3)
    for i, name in enumerate(names):
        await namespace.beat(name, 990, in_flight=i)
    status = await namespace.reconcile(reconciler, seconds=31)
    assert (await namespace.deployment())["spec"]["replicas"] == 3
    assert condition(status, "ScalingActive")[:2] == ("True", "External")
    costs = [pod["metadata"]["annotations"][DELETION_COST] for pod in await namespace.pods()]
    assert costs == ["990", "1040", "1090"]


async def test_external_mode_follows_the_scale_of_the_gateway(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(scaling={"mode": "External"}))
    await namespace.reconcile(reconciler)
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": 5}}, "scale")
    await namespace.reconcile(reconciler)
    assert (await namespace.deployment())["spec"]["replicas"] == 5
    await namespace.run_pods(5)
    status = await namespace.reconcile(reconciler)
    scale = await namespace.admin.get("LinkGateway", namespace.name, "edge", "scale")
    assert scale["status"] == {"replicas": 5, "selector": "fairlead.dev/gateway=edge"}
    assert status["decision"]["winner"] == "external"


async def test_scale_is_not_written_after_another_writer(namespace: OperatorNamespace) -> None:
    await namespace.reconcile(namespace.reconciler(await namespace.gateway()))
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 3}}, "scale")
    with pytest.raises(Conflict, match="has scaled edge to 3 replicas"):
        await write_scale(namespace.operator, namespace.name, "edge", 2, 4)
    assert (await namespace.deployment())["spec"]["replicas"] == 3
    await write_scale(namespace.operator, namespace.name, "edge", 3, 4)
    assert (await namespace.deployment())["spec"]["replicas"] == 4


@pytest.mark.parametrize("mode", ["Paused", "DryRun"])
async def test_paused_and_dry_run_only_report(namespace: OperatorNamespace, mode: str) -> None:
    status = await namespace.reconcile(namespace.reconciler(await namespace.gateway(scaling={"mode": mode})))
    assert (await namespace.deployment())["spec"]["replicas"] == 1
    held, reason, message = condition(status, "ScalingActive")
    assert (held, reason) == ("False", mode)
    assert "replicas.min asks for 2" in message


async def test_rights_of_the_table_are_sufficient_and_all_needed(namespace: OperatorNamespace) -> None:
    _, status = await shrinking(namespace, {0: 100, 1: 120, 2: 3, 3: 110})
    assert status["desiredReplicas"] == 3
    assert not [one for one in status["conditions"] if one["reason"] == "AccessDenied"]


# -- writing ------------------------------------------------------------------------------------------


async def test_unchanged_status_is_not_written_again(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    for name in await namespace.run_pods(2):
        await namespace.beat(name, 10)
    await namespace.reconcile(reconciler)
    await namespace.reconcile(reconciler)
    before = await namespace.admin.get("LinkGateway", namespace.name, "edge")
    await namespace.reconcile(reconciler)
    after = await namespace.admin.get("LinkGateway", namespace.name, "edge")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_fence_stops_every_write(namespace: OperatorNamespace) -> None:
    """Every kind of write, by a reconciler whose replica has just lost the Lease."""

    def shut() -> None:
        raise NotLeader("the lease is over")

    fenced = Cluster(namespace.operator._client, shut)
    body = await namespace.gateway()
    with pytest.raises(NotLeader):
        await namespace.reconcile(namespace.reconciler(body, fenced))
    assert await namespace.admin.find("Deployment", namespace.name, "edge") is None
    assert "status" not in await namespace.admin.get("LinkGateway", namespace.name, "edge")
    pod: Object = {"kind": "Event", "metadata": {"name": "x", "namespace": namespace.name}}
    for write in (
        fenced.create(pod),
        fenced.patch("LinkGateway", namespace.name, "edge", {}),
        fenced.delete("LinkGateway", namespace.name, "edge", body["metadata"]["uid"]),
        fenced.apply({**pod, "kind": "Service"}),
        fenced.evict(namespace.name, "x", "uid"),
    ):
        with pytest.raises(NotLeader):
            await write


async def test_deleted_children_are_created_again_in_the_next_pass(namespace: OperatorNamespace) -> None:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    await namespace.reconcile(reconciler)
    for kind, name in (("Deployment", "edge"), ("Service", "edge-agents"), ("Service", "edge-platform")):
        found = await namespace.admin.get(kind, namespace.name, name)
        await namespace.admin.delete(kind, namespace.name, name, found["metadata"]["uid"])
    status = await namespace.reconcile(
        reconciler
    )  # 10 s after the last, where a changed field is looked for every 30 s
    assert condition(status, "Reconciled")[:2] == ("True", "Applied")
    messages = [message for reason, message in await namespace.events() if reason == "Repaired"]
    for what in ("Deployment edge", "Service edge-agents", "Service edge-platform"):
        assert f"{what} had been deleted and was created again" in messages
