"""LinkOperations against a real API server: drains, restarts, their order, refusals, and their deletion."""

from __future__ import annotations

import pytest

from fairlead_operator.api.link_operation import RESTART_ANNOTATION
from fairlead_operator.kube.errors import ApiServerRefused
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED
from fairlead_operator.metrics import Metrics
from fairlead_operator.operations.runner import OperationRunner

from support.operations import condition, leaving_pods, settled_fleet
from support.operator_namespace import OperatorNamespace


async def test_drain_evicts_the_pod_and_completes_when_another_is_ready(namespace: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.operate("away", type="Drain", pod=one, reason="a bad disk")
    await namespace.reconcile(reconciler)
    assert await leaving_pods(namespace) == {one}
    status = await namespace.operation("away")
    assert (status["phase"], status["linksAtStart"], status["linksLeft"]) == ("Running", 100, 100)
    assert condition(status, "Complete") == ("False", "Draining")
    # Its node keeps reporting while its agents leave.
    await namespace.beat(one, 40)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert (status["linksLeft"], status["message"]) == (40, f"{one} has 40 links left")
    await namespace.end(one)
    await namespace.until("its place to be taken", lambda: namespace._exactly(2))
    await namespace.reconcile(reconciler)
    assert condition(await namespace.operation("away"), "Complete") == ("False", "Replacing")
    await namespace.run_pods(2)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert (status["phase"], status["linksLeft"]) == ("Succeeded", 0)
    assert (condition(status, "Complete"), condition(status, "Failed")) == (
        ("True", "Completed"),
        ("False", "Completed"),
    )
    assert status["message"] == f"{one} is gone; 2 pods are ready"
    assert [reason for reason, _ in await namespace.events("LinkOperation")].count("Completed") == 1
    assert not [reason for reason, _ in await namespace.events() if reason == "WrongPodRemoved"]
    assert namespace.metrics.operations.labels("Drain", "Succeeded")._value.get() == 1


async def test_restart_is_complete_when_all_pods_are_new(namespace: OperatorNamespace) -> None:
    reconciler, old = await settled_fleet(namespace)
    made = await namespace.operate("anew", type="Restart")
    await namespace.reconcile(reconciler)
    status = await namespace.operation("anew")
    assert (status["phase"], status["linksAtStart"]) == ("Running", 201)
    template = (await namespace.deployment())["spec"]["template"]["metadata"]
    assert template["annotations"][RESTART_ANNOTATION] == made["metadata"]["uid"]
    generation = (await namespace.deployment())["metadata"]["generation"]

    async def rolled() -> bool:
        """Plays the kubelet: new pods run, and old ones end."""
        for pod in await namespace.pods():
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                await namespace.end(name)
            else:
                await namespace.run(name)
        await namespace.reconcile(reconciler, seconds=1)
        return bool((await namespace.operation("anew"))["phase"] != "Running")

    await namespace.until("all pods to be new", rolled)
    status = await namespace.operation("anew")
    assert (status["phase"], status["message"]) == ("Succeeded", "all pods are new; 2 pods are ready")
    names = {pod["metadata"]["name"] for pod in await namespace.pods()}
    assert len(names) == 2
    assert not names & set(old)
    # The annotation is not drift: applying the operator's own fields keeps it, and no rollout follows.
    await namespace.reconcile(reconciler, seconds=31)
    assert (await namespace.deployment())["metadata"]["generation"] == generation


async def test_second_operation_waits_and_names_the_first(namespace: OperatorNamespace) -> None:
    reconciler, (one, other) = await settled_fleet(namespace)
    first = await namespace.operate("first", type="Drain", pod=one)
    await namespace.reconcile(reconciler)
    await namespace.operate("second", type="Drain", pod=other)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("second")
    assert (status["phase"], condition(status, "Complete")) == ("Pending", ("False", "Queued"))
    assert "waiting for the operation first" in status["message"]
    assert await leaving_pods(namespace) == {one}
    # Deleted while it runs: what has begun goes on, the next operation runs, and the budget protects the pods.
    await namespace.admin.delete("LinkOperation", namespace.name, "first", first["metadata"]["uid"])
    await namespace.end(one)
    await namespace.run_pods(2)

    async def begun() -> bool:
        await namespace.reconcile(reconciler, seconds=1)
        return await leaving_pods(namespace) == {other}

    await namespace.until("the second to begin", begun)
    assert (await namespace.operation("second"))["phase"] == "Running"


async def test_drain_waits_for_the_disruption_budget(namespace: OperatorNamespace) -> None:
    reconciler, (one, other) = await settled_fleet(namespace)
    ill = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await namespace.admin.patch("Pod", namespace.name, other, ill, "status")

    async def spent() -> bool:
        budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
        return bool(budget["status"]["disruptionsAllowed"] == 0)

    await namespace.until("the budget to be spent", spent)
    await namespace.operate("away", type="Drain", pod=one)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert (status["phase"], condition(status, "Complete")) == ("Running", ("False", "Blocked"))
    assert f"{one} cannot be replaced yet" in status["message"]
    assert "disruption budget" in status["message"]
    assert await leaving_pods(namespace) == set()
    written = (await namespace.admin.get("LinkOperation", namespace.name, "away"))["metadata"]["resourceVersion"]
    await namespace.reconcile(reconciler)
    again = (await namespace.admin.get("LinkOperation", namespace.name, "away"))["metadata"]["resourceVersion"]
    assert again == written  # nothing new was told
    await namespace.run(other)

    async def gone() -> bool:
        await namespace.reconcile(reconciler, seconds=1)
        return await leaving_pods(namespace) == {one}

    await namespace.until("the pod to be evicted", gone)


async def test_new_leader_continues_an_operation(namespace: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.operate("away", type="Drain", pod=one)
    await namespace.reconcile(reconciler)
    began = await namespace.operation("away")
    await reconciler.aclose()
    await namespace.end(one)
    await namespace.run_pods(2)
    body = await namespace.admin.get("LinkGateway", namespace.name, "edge")
    await namespace.reconcile(namespace.reconciler(body))
    status = await namespace.operation("away")
    assert (status["phase"], status["startedAt"]) == ("Succeeded", began["startedAt"])


async def test_scale_down_waits_while_an_operation_runs(namespace: OperatorNamespace) -> None:
    """Without the operation the same fleet shrinks: test_scale_down_removes_the_emptiest_pod."""
    reconciler, names = await settled_fleet(namespace, 4, scaling={"windowSeconds": 30, "stepDownSeconds": 10})
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 2}}})
    await namespace.operate("away", type="Drain", pod=names[0])
    seen = ""
    for _ in range(6):
        for name in names:
            await namespace.beat(name, 10)
        seen = (await namespace.reconcile(reconciler))["decision"]["reason"]
        assert (await namespace.deployment())["spec"]["replicas"] == 4
    assert seen == "2 pods would suffice, but the LinkOperation away is running"


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        ({"type": "Drain", "pod": "nothing"}, "PodNotFound", "edge has no running pod nothing"),
        ({"type": "Drain", "pod": "alien"}, "PodNotOwned", "alien does not belong to the LinkGateway edge"),
    ],
)
async def test_drain_of_a_foreign_pod_fails(
    namespace: OperatorNamespace, asked: Object, reason: str, words: str
) -> None:
    reconciler, _ = await settled_fleet(namespace)
    alien: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alien", "namespace": namespace.name}}
    alien["spec"] = (await namespace.pods())[0]["spec"] | {"nodeName": ""}
    await namespace.admin.create(alien)
    await namespace.operate("away", **asked)
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert (status["phase"], condition(status, "Failed")) == ("Failed", ("True", reason))
    assert words in status["message"]
    assert status["finishedAt"]
    assert ((reason, status["message"])) in await namespace.events("LinkOperation")
    assert await leaving_pods(namespace) == set()


@pytest.mark.parametrize("kind", ["Drain", "Restart"])
async def test_operation_at_a_paused_gateway_fails(namespace: OperatorNamespace, kind: str) -> None:
    reconciler, names = await settled_fleet(namespace)
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"scaling": {"mode": "Paused"}}})
    await namespace.operate("away", type=kind, **({"pod": names[0]} if kind == "Drain" else {}))
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert condition(status, "Failed") == ("True", "GatewayPaused")
    assert "scaling.mode of edge is Paused" in status["message"]
    assert await leaving_pods(namespace) == set()
    assert RESTART_ANNOTATION not in (
        (await namespace.deployment())["spec"]["template"]["metadata"].get("annotations") or {}
    )


async def test_operation_at_a_gateway_that_is_not_accepted_fails(namespace: OperatorNamespace) -> None:
    made = [await namespace.gateway("one"), await namespace.gateway("another")]
    made.sort(key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["uid"]))
    younger = made[1]["metadata"]["name"]
    await namespace.operate("anew", gateway=younger, type="Restart")
    await namespace.reconcile(namespace.reconciler(made[1]), younger)
    status = await namespace.operation("anew")
    assert condition(status, "Failed") == ("True", "GatewayNotAccepted")
    assert f"the LinkGateway {younger} is not accepted: the LinkGateway" in status["message"]


async def test_operation_is_deleted_with_its_gateway(namespace: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.operate("away", type="Drain", pod=one)
    await namespace.reconcile(reconciler)
    found = await namespace.admin.get("LinkOperation", namespace.name, "away")
    assert "finalizers" not in found["metadata"]
    uid = (await namespace.admin.get("LinkGateway", namespace.name, "edge"))["metadata"]["uid"]
    await namespace.admin.delete("LinkGateway", namespace.name, "edge", uid)

    async def gone() -> bool:
        return await namespace.admin.find("LinkOperation", namespace.name, "away") is None

    await namespace.until("the operation to go with it", gone)


@pytest.mark.parametrize(
    ("lost", "verb", "asked"),
    [("pods/eviction", "create", "Drain"), ("linkoperations", "patch", "Drain"), ("deployments", "patch", "Restart")],
)
async def test_missing_right_is_named(namespace: OperatorNamespace, lost: str, verb: str, asked: str) -> None:
    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.allow(*NAMESPACED, *LEASE, without=(lost, verb))
    await namespace.operate("away", type=asked, **({"pod": one} if asked == "Drain" else {}))
    await namespace.reconcile(reconciler)
    status = await namespace.operation("away")
    assert condition(status, "Failed") == ("True", "AccessDenied")
    assert "cannot" in status["message"]
    assert lost.partition("/")[0] in status["message"]
    assert await leaving_pods(namespace) == set()


async def test_operation_does_not_begin_when_its_status_cannot_be_written(namespace: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.allow(*NAMESPACED, *LEASE, without=("linkoperations/status", "patch"))
    await namespace.operate("away", type="Drain", pod=one)
    status = await namespace.reconcile(reconciler)
    assert await namespace.operation("away") == {}
    assert await leaving_pods(namespace) == set()
    assert [held["status"] for held in status["conditions"] if held["type"] == "Ready"] == ["True"]


# -- what the API server itself refuses ---------------------------------------------------------------


async def test_operation_can_be_cancelled_and_stays_so(namespace: OperatorNamespace) -> None:
    reconciler, _ = await settled_fleet(namespace)
    await namespace.operate("spread", type="Rebalance")
    await namespace.reconcile(reconciler)
    assert (await namespace.operation("spread"))["phase"] == "Running"
    await namespace.admin.patch("LinkOperation", namespace.name, "spread", {"spec": {"cancel": True}})
    await namespace.reconcile(reconciler)
    status = await namespace.operation("spread")
    assert (status["phase"], status["message"]) == ("Failed", "cancelled")
    assert condition(status, "Failed")[:2] == ("True", "Cancelled")
    with pytest.raises(ApiServerRefused, match="stays cancelled"):
        await namespace.admin.patch("LinkOperation", namespace.name, "spread", {"spec": {"cancel": False}})


async def test_ended_operation_is_deleted_when_its_time_is_over(namespace: OperatorNamespace) -> None:
    await namespace.operate("gone", type="Drain", pod="nowhere", ttlSecondsAfterFinished=0)
    await namespace.operate("kept", type="Drain", pod="nowhere")
    reconciler, _ = await settled_fleet(namespace)
    await namespace.reconcile(reconciler)
    found = [await namespace.admin.get("LinkOperation", namespace.name, name) for name in ("gone", "kept")]
    assert [one["status"]["phase"] for one in found] == ["Failed", "Failed"]
    await OperationRunner(namespace.operator, Metrics()).delete_expired(found)
    assert await namespace.admin.find("LinkOperation", namespace.name, "gone") is None
    assert await namespace.admin.find("LinkOperation", namespace.name, "kept") is not None
