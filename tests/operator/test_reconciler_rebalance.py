"""A rebalance of one LinkGateway against a real API server and a real Redis: what nodes read, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.fleet import schema
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.store.reply import integer
from fairlead_operator.kube.errors import ApiServerRefused
from fairlead_operator.kube.objects import Object
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_world import OperatorNamespace, condition


async def uneven(world: OperatorNamespace, **spec: Any) -> tuple[Reconciler, list[str]]:
    """A fleet whose first pod has all the links."""
    reconciler = world.reconciler(await world.gateway(**spec))
    await world.reconcile(reconciler)
    pods = await world.run_pods(2)
    await report(world, pods, 400, 0)
    return reconciler, pods


async def report(world: OperatorNamespace, pods: list[str], *links: int) -> None:
    for pod, count in zip(pods, links, strict=True):
        await world.beat(pod, count)


async def passes(
    world: OperatorNamespace, reconciler: Reconciler, count: int, pods: Sequence[str] = (), links: Sequence[int] = ()
) -> Object:
    """`pods` report these `links` before each pass, so that none falls silent on a busy machine."""
    for _ in range(count):
        await report(world, list(pods), *links)
        status = await world.reconcile(reconciler)
    return status


async def test_nodes_are_told_what_to_keep_until_the_links_are_even(world: OperatorNamespace) -> None:
    reconciler, pods = await uneven(world)
    targets = RebalanceTargets(world.store)
    status = await passes(world, reconciler, 3, pods, (400, 0))
    assert condition(status, "Rebalanced")[:2] == ("Unknown", "Waiting")
    assert await targets.read(pods[0]) is None
    status = await passes(world, reconciler, 1, pods, (400, 0))
    assert (status["phase"], status["rebalance"]["state"], status["rebalance"]["toMove"]) == (
        "Rebalancing", "Running", 200,
    )  # fmt: skip
    assert condition(status, "Rebalanced")[:2] == ("Unknown", "Rebalancing")
    assert [await targets.read(pod) for pod in pods] == [RebalanceTarget(200, 200), RebalanceTarget(210)]
    assert 0 < integer(await world.store.submit("PTTL", schema.REBALANCE)) <= schema.REBALANCE_MS
    status = await passes(world, reconciler, 1, pods, (205, 195))
    assert condition(status, "Rebalanced")[:2] == ("True", "Even")
    assert (status["phase"], status["rebalance"]["toMove"]) == ("Ready", 0)
    assert [await targets.read(pod) for pod in pods] == [None, None]
    events = [reason for reason, _ in await world.events() if reason.startswith("Rebalance")]
    assert sorted(events) == ["RebalanceEnded", "RebalanceStarted"]


async def test_load_balancer_that_pins_becomes_a_condition_and_an_event(world: OperatorNamespace) -> None:
    reconciler, pods = await uneven(world)
    for moved in range(14):
        await world.beat(pods[0], 400, moved=moved * 40)
        await world.beat(pods[1], 0)
        status = await world.reconcile(reconciler)
    held, reason, message = condition(status, "Rebalanced")
    assert (held, reason) == ("False", "LoadBalancerPins")
    assert "links were moved in the last 90 s and came back" in message
    assert status["rebalance"]["state"] == "Stopped"
    assert status["phase"] == "Ready"
    (text,) = [message for reason, message in await world.events() if reason == "LoadBalancerPins"]
    assert text.startswith("Rebalanced: ")


async def test_nothing_is_written_when_the_rebalance_is_switched_off(world: OperatorNamespace) -> None:
    reconciler, pods = await uneven(world, rebalance={"enabled": False})
    status = await passes(world, reconciler, 5)
    assert condition(status, "Rebalanced")[1:] == ("Waiting", "no links are moved: rebalance.enabled is false")
    assert await RebalanceTargets(world.store).read(pods[0]) is None


async def test_pod_is_not_removed_while_links_are_moved(world: OperatorNamespace) -> None:
    reconciler, pods = await uneven(world, scaling={"windowSeconds": 30, "failureTolerance": 0})
    assert (await passes(world, reconciler, 4, pods, (100, 0)))["phase"] == "Rebalancing"
    await world.admin.patch("LinkGateway", world.namespace, "edge", {"spec": {"replicas": {"min": 1}}})
    status = await passes(world, reconciler, 5, pods, (100, 0))
    assert status["phase"] == "Rebalancing"
    assert status["decision"]["reason"] == "1 pod would suffice, but links are being moved from full pods to others"


async def test_a_change_of_the_deployment_outside_its_template_does_not_interrupt_it(world: OperatorNamespace) -> None:
    """The pass that applies the change reads the Deployment before its controller has seen it."""
    reconciler, pods = await uneven(world)
    assert (await passes(world, reconciler, 4, pods, (400, 0)))["phase"] == "Rebalancing"
    for seconds in (31, 32, 33):
        before = (await world.deployment())["metadata"]["generation"]
        limit = {"spec": {"rollingUpdate": {"minReadySeconds": seconds}}}
        await world.admin.patch("LinkGateway", world.namespace, "edge", limit)
        status = await passes(world, reconciler, 1, pods, (400 - seconds, seconds))
        assert (await world.deployment())["metadata"]["generation"] > before
        assert (status["phase"], condition(status, "Rebalanced")[1]) == ("Rebalancing", "Rebalancing")
    assert "RebalanceEnded" not in {reason for reason, _ in await world.events()}


async def test_unready_pods_that_leave_new_links_to_others_serve_and_do_not_block_evictions(
    world: OperatorNamespace,
) -> None:
    reconciler = world.reconciler(await world.gateway(replicas={"min": 4, "max": 4}))
    await world.reconcile(reconciler)
    pods = await world.run_pods(4)
    before = await passes(world, reconciler, 4, pods, (400, 400, 0, 0))
    assert before["phase"] == "Rebalancing"
    targets = [await RebalanceTargets(world.store).read(pod) for pod in pods]
    assert [target and target.enough for target in targets] == [200, 200, None, None]
    for pod in pods[:2]:
        await world.beat(pod, 400, excluded_by="rebalance", spare_accept_rate=0)
        await world.run(pod, ready=False)
    status = await passes(world, reconciler, 2)
    assert (status["phase"], status["readyReplicas"]) == ("Rebalancing", 4)
    inputs = status["decision"]["inputs"]
    assert (inputs["ready"], inputs["pending"], inputs["excluded"]) == (4, 0, 2)
    assert condition(status, "Ready") == (
        "True",
        "Serving",
        "4 of 4 pods are ready, 2 of them leave new links to others",
    )
    assert condition(status, "PodsRunning")[0] == "True"
    assert condition(status, "Progressing")[:2] == ("False", "Stable")
    # Four pods, two of them unready: with maxUnavailable 1 none of the other two could be evicted.
    await world.until("the budget to allow an eviction", lambda: evictions_allowed(world, 1))
    uid = next(one["metadata"]["uid"] for one in await world.pods() if one["metadata"]["name"] == pods[3])
    await world.operator.evict(world.namespace, pods[3], uid)
    for pod in pods[:2]:
        await world.beat(pod, 200)
        await world.run(pod)
    await passes(world, reconciler, 2)
    budget = await world.admin.get("PodDisruptionBudget", world.namespace, "edge")
    assert budget["spec"]["maxUnavailable"] == 1


async def test_a_pass_without_redis_remembers_which_pods_leave_new_links_to_others(world: OperatorNamespace) -> None:
    reconciler, pods = await uneven(world)
    await passes(world, reconciler, 4, pods, (400, 0))
    await world.beat(pods[0], 400, excluded_by="rebalance")
    await world.run(pods[0], ready=False)
    assert (await passes(world, reconciler, 1))["readyReplicas"] == 2
    secret = await world.admin.get("Secret", world.namespace, "redis")
    await world.admin.delete("Secret", world.namespace, "redis", secret["metadata"]["uid"])
    status = await passes(world, reconciler, 4)
    assert condition(status, "RedisReachable")[0] == "False"
    inputs = status["decision"]["inputs"]
    assert (inputs["ready"], inputs["pending"], inputs["excluded"]) == (2, 0, 1)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    budget = await world.admin.get("PodDisruptionBudget", world.namespace, "edge")
    assert budget["spec"]["maxUnavailable"] == 2
    # Its node has taken new links again for long: that it is unready has another reason now.
    status = await passes(world, reconciler, 1)
    assert (status["decision"]["inputs"]["ready"], condition(status, "Ready")[0]) == (1, "False")


async def evictions_allowed(world: OperatorNamespace, count: int) -> bool:
    budget = await world.admin.get("PodDisruptionBudget", world.namespace, "edge")
    return bool(budget.get("status", {}).get("disruptionsAllowed") == count)


@pytest.mark.parametrize("rebalance", [{"thresholdPercent": 1}, {"minDifference": 0}], ids=str)
async def test_invalid_thresholds_are_refused_by_the_api_server(world: OperatorNamespace, rebalance: Object) -> None:
    with pytest.raises(ApiServerRefused, match="should be greater than or equal to"):
        await world.gateway(rebalance=rebalance)
