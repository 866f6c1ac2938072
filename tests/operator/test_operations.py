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
from support.operator_world import OperatorNamespace


async def test_drain_evicts_the_pod_and_completes_when_another_is_ready(world: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(world)
    await world.operate("away", type="Drain", pod=one, reason="a bad disk")
    await world.reconcile(reconciler)
    assert await leaving_pods(world) == {one}
    status = await world.operation("away")
    assert (status["phase"], status["linksAtStart"], status["linksLeft"]) == ("Running", 100, 100)
    assert condition(status, "Complete") == ("False", "Draining")
    # Its node keeps reporting while its agents leave.
    await world.beat(one, 40)
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert (status["linksLeft"], status["message"]) == (40, f"{one} has 40 links left")
    await world.end(one)
    await world.until("its place to be taken", lambda: world._exactly(2))
    await world.reconcile(reconciler)
    assert condition(await world.operation("away"), "Complete") == ("False", "Replacing")
    await world.run_pods(2)
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert (status["phase"], status["linksLeft"]) == ("Succeeded", 0)
    assert (condition(status, "Complete"), condition(status, "Failed")) == (
        ("True", "Completed"),
        ("False", "Completed"),
    )
    assert status["message"] == f"{one} is gone; 2 pods are ready"
    assert [reason for reason, _ in await world.events("LinkOperation")].count("Completed") == 1
    assert not [reason for reason, _ in await world.events() if reason == "WrongPodRemoved"]
    assert world.metrics.operations.labels("Drain", "Succeeded")._value.get() == 1


async def test_restart_is_complete_when_all_pods_are_new(world: OperatorNamespace) -> None:
    reconciler, old = await settled_fleet(world)
    made = await world.operate("anew", type="Restart")
    await world.reconcile(reconciler)
    status = await world.operation("anew")
    assert (status["phase"], status["linksAtStart"]) == ("Running", 201)
    template = (await world.deployment())["spec"]["template"]["metadata"]
    assert template["annotations"][RESTART_ANNOTATION] == made["metadata"]["uid"]
    generation = (await world.deployment())["metadata"]["generation"]

    async def rolled() -> bool:
        """Plays the kubelet: new pods run, and old ones end."""
        for pod in await world.pods():
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                await world.end(name)
            else:
                await world.run(name)
        await world.reconcile(reconciler, seconds=1)
        return bool((await world.operation("anew"))["phase"] != "Running")

    await world.until("all pods to be new", rolled)
    status = await world.operation("anew")
    assert (status["phase"], status["message"]) == ("Succeeded", "all pods are new; 2 pods are ready")
    names = {pod["metadata"]["name"] for pod in await world.pods()}
    assert len(names) == 2
    assert not names & set(old)
    # The annotation is not drift: applying the operator's own fields keeps it, and no rollout follows.
    await world.reconcile(reconciler, seconds=31)
    assert (await world.deployment())["metadata"]["generation"] == generation


async def test_second_operation_waits_and_names_the_first(world: OperatorNamespace) -> None:
    reconciler, (one, other) = await settled_fleet(world)
    first = await world.operate("first", type="Drain", pod=one)
    await world.reconcile(reconciler)
    await world.operate("second", type="Drain", pod=other)
    await world.reconcile(reconciler)
    status = await world.operation("second")
    assert (status["phase"], condition(status, "Complete")) == ("Pending", ("False", "Queued"))
    assert "waiting for the operation first" in status["message"]
    assert await leaving_pods(world) == {one}
    # Deleted while it runs: what has begun goes on, the next operation runs, and the budget protects the pods.
    await world.admin.delete("LinkOperation", world.namespace, "first", first["metadata"]["uid"])
    await world.end(one)
    await world.run_pods(2)

    async def begun() -> bool:
        await world.reconcile(reconciler, seconds=1)
        return await leaving_pods(world) == {other}

    await world.until("the second to begin", begun)
    assert (await world.operation("second"))["phase"] == "Running"


async def test_drain_waits_for_the_disruption_budget(world: OperatorNamespace) -> None:
    reconciler, (one, other) = await settled_fleet(world)
    ill = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await world.admin.patch("Pod", world.namespace, other, ill, "status")

    async def spent() -> bool:
        budget = await world.admin.get("PodDisruptionBudget", world.namespace, "edge")
        return bool(budget["status"]["disruptionsAllowed"] == 0)

    await world.until("the budget to be spent", spent)
    await world.operate("away", type="Drain", pod=one)
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert (status["phase"], condition(status, "Complete")) == ("Running", ("False", "Blocked"))
    assert f"{one} cannot be replaced yet" in status["message"]
    assert "disruption budget" in status["message"]
    assert await leaving_pods(world) == set()
    written = (await world.admin.get("LinkOperation", world.namespace, "away"))["metadata"]["resourceVersion"]
    await world.reconcile(reconciler)
    again = (await world.admin.get("LinkOperation", world.namespace, "away"))["metadata"]["resourceVersion"]
    assert again == written  # nothing new was told
    await world.run(other)

    async def gone() -> bool:
        await world.reconcile(reconciler, seconds=1)
        return await leaving_pods(world) == {one}

    await world.until("the pod to be evicted", gone)


async def test_new_leader_continues_an_operation(world: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(world)
    await world.operate("away", type="Drain", pod=one)
    await world.reconcile(reconciler)
    began = await world.operation("away")
    await reconciler.aclose()
    await world.end(one)
    await world.run_pods(2)
    body = await world.admin.get("LinkGateway", world.namespace, "edge")
    await world.reconcile(world.reconciler(body))
    status = await world.operation("away")
    assert (status["phase"], status["startedAt"]) == ("Succeeded", began["startedAt"])


async def test_scale_down_waits_while_an_operation_runs(world: OperatorNamespace) -> None:
    """Without the operation the same fleet shrinks: test_scale_down_removes_the_emptiest_pod."""
    reconciler, names = await settled_fleet(world, 4, scaling={"windowSeconds": 30, "stepDownSeconds": 10})
    await world.admin.patch("LinkGateway", world.namespace, "edge", {"spec": {"replicas": {"min": 2}}})
    await world.operate("away", type="Drain", pod=names[0])
    seen = ""
    for _ in range(6):
        for name in names:
            await world.beat(name, 10)
        seen = (await world.reconcile(reconciler))["decision"]["reason"]
        assert (await world.deployment())["spec"]["replicas"] == 4
    assert seen == "2 pods would suffice, but the LinkOperation away is running"


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        ({"type": "Drain", "pod": "nothing"}, "PodNotFound", "edge has no running pod nothing"),
        ({"type": "Drain", "pod": "alien"}, "PodNotOwned", "alien does not belong to the LinkGateway edge"),
    ],
)
async def test_drain_of_a_foreign_pod_fails(world: OperatorNamespace, asked: Object, reason: str, words: str) -> None:
    reconciler, _ = await settled_fleet(world)
    alien: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alien", "namespace": world.namespace}}
    alien["spec"] = (await world.pods())[0]["spec"] | {"nodeName": ""}
    await world.admin.create(alien)
    await world.operate("away", **asked)
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert (status["phase"], condition(status, "Failed")) == ("Failed", ("True", reason))
    assert words in status["message"]
    assert status["finishedAt"]
    assert ((reason, status["message"])) in await world.events("LinkOperation")
    assert await leaving_pods(world) == set()


@pytest.mark.parametrize("kind", ["Drain", "Restart"])
async def test_operation_at_a_paused_gateway_fails(world: OperatorNamespace, kind: str) -> None:
    reconciler, names = await settled_fleet(world)
    await world.admin.patch("LinkGateway", world.namespace, "edge", {"spec": {"scaling": {"mode": "Paused"}}})
    await world.operate("away", type=kind, **({"pod": names[0]} if kind == "Drain" else {}))
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert condition(status, "Failed") == ("True", "GatewayPaused")
    assert "scaling.mode of edge is Paused" in status["message"]
    assert await leaving_pods(world) == set()
    assert RESTART_ANNOTATION not in (
        (await world.deployment())["spec"]["template"]["metadata"].get("annotations") or {}
    )


async def test_operation_at_a_gateway_that_is_not_accepted_fails(world: OperatorNamespace) -> None:
    made = [await world.gateway("one"), await world.gateway("another")]
    made.sort(key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["uid"]))
    younger = made[1]["metadata"]["name"]
    await world.operate("anew", gateway=younger, type="Restart")
    await world.reconcile(world.reconciler(made[1]), younger)
    status = await world.operation("anew")
    assert condition(status, "Failed") == ("True", "GatewayNotAccepted")
    assert f"the LinkGateway {younger} is not accepted: the LinkGateway" in status["message"]


async def test_operation_is_deleted_with_its_gateway(world: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(world)
    await world.operate("away", type="Drain", pod=one)
    await world.reconcile(reconciler)
    found = await world.admin.get("LinkOperation", world.namespace, "away")
    assert "finalizers" not in found["metadata"]
    uid = (await world.admin.get("LinkGateway", world.namespace, "edge"))["metadata"]["uid"]
    await world.admin.delete("LinkGateway", world.namespace, "edge", uid)

    async def gone() -> bool:
        return await world.admin.find("LinkOperation", world.namespace, "away") is None

    await world.until("the operation to go with it", gone)


@pytest.mark.parametrize(
    ("lost", "verb", "asked"),
    [("pods/eviction", "create", "Drain"), ("linkoperations", "patch", "Drain"), ("deployments", "patch", "Restart")],
)
async def test_missing_right_is_named(world: OperatorNamespace, lost: str, verb: str, asked: str) -> None:
    reconciler, (one, _) = await settled_fleet(world)
    await world.allow(*NAMESPACED, *LEASE, without=(lost, verb))
    await world.operate("away", type=asked, **({"pod": one} if asked == "Drain" else {}))
    await world.reconcile(reconciler)
    status = await world.operation("away")
    assert condition(status, "Failed") == ("True", "AccessDenied")
    assert "cannot" in status["message"]
    assert lost.partition("/")[0] in status["message"]
    assert await leaving_pods(world) == set()


async def test_operation_does_not_begin_when_its_status_cannot_be_written(world: OperatorNamespace) -> None:
    reconciler, (one, _) = await settled_fleet(world)
    await world.allow(*NAMESPACED, *LEASE, without=("linkoperations/status", "patch"))
    await world.operate("away", type="Drain", pod=one)
    status = await world.reconcile(reconciler)
    assert await world.operation("away") == {}
    assert await leaving_pods(world) == set()
    assert [held["status"] for held in status["conditions"] if held["type"] == "Ready"] == ["True"]


# -- what the API server itself refuses ---------------------------------------------------------------


async def test_operation_can_be_cancelled_and_stays_so(world: OperatorNamespace) -> None:
    reconciler, _ = await settled_fleet(world)
    await world.operate("spread", type="Rebalance")
    await world.reconcile(reconciler)
    assert (await world.operation("spread"))["phase"] == "Running"
    await world.admin.patch("LinkOperation", world.namespace, "spread", {"spec": {"cancel": True}})
    await world.reconcile(reconciler)
    status = await world.operation("spread")
    assert (status["phase"], status["message"]) == ("Failed", "cancelled")
    assert condition(status, "Failed")[:2] == ("True", "Cancelled")
    with pytest.raises(ApiServerRefused, match="stays cancelled"):
        await world.admin.patch("LinkOperation", world.namespace, "spread", {"spec": {"cancel": False}})


async def test_ended_operation_is_deleted_when_its_time_is_over(world: OperatorNamespace) -> None:
    await world.operate("gone", type="Drain", pod="nowhere", ttlSecondsAfterFinished=0)
    await world.operate("kept", type="Drain", pod="nowhere")
    reconciler, _ = await settled_fleet(world)
    await world.reconcile(reconciler)
    found = [await world.admin.get("LinkOperation", world.namespace, name) for name in ("gone", "kept")]
    assert [one["status"]["phase"] for one in found] == ["Failed", "Failed"]
    await OperationRunner(world.operator, Metrics()).delete_expired(found)
    assert await world.admin.find("LinkOperation", world.namespace, "gone") is None
    assert await world.admin.find("LinkOperation", world.namespace, "kept") is not None
