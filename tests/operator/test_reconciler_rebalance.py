"""A rebalance of one LinkGateway against a real API server and a real Redis: what nodes read, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.fleet import schema
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import REBALANCE_MS, RebalanceTargets
from fairlead.store.reply import integer
from fairlead_operator.kube.errors import ApiServerRefused
from fairlead_operator.kube.objects import Object
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import OperatorNamespace, condition


async def uneven(namespace: OperatorNamespace, **spec: Any) -> tuple[Reconciler, list[str]]:
    """A fleet whose first pod has all the links."""
    reconciler = namespace.reconciler(await namespace.gateway(**spec))
    await namespace.reconcile(reconciler)
    pods = await namespace.run_pods(2)
    await report(namespace, pods, 400, 0)
    return reconciler, pods


async def report(namespace: OperatorNamespace, pods: list[str], *links: int) -> None:
    for pod, count in zip(pods, links, strict=True):
        await namespace.beat(pod, count)


async def passes(
    namespace: OperatorNamespace,
    reconciler: Reconciler,
    count: int,
    pods: Sequence[str] = (),
    links: Sequence[int] = (),
) -> Object:
    """`pods` report these `links` before each pass, so that none falls silent on a busy machine."""
    for _ in range(count):
        await report(namespace, list(pods), *links)
        status = await namespace.reconcile(reconciler)
    return status


async def test_nodes_are_told_what_to_keep_until_the_links_are_even(namespace: OperatorNamespace) -> None:
    reconciler, pods = await uneven(namespace)
    targets = RebalanceTargets(namespace.store)
    status = await passes(namespace, reconciler, 3, pods, (400, 0))
    assert condition(status, "Rebalanced")[:2] == ("Unknown", "Waiting")
    assert await targets.read(pods[0]) is None
    status = await passes(namespace, reconciler, 1, pods, (400, 0))
    assert (status["phase"], status["rebalance"]["state"], status["rebalance"]["toMove"]) == (
        "Rebalancing", "Running", 200,
    )  # fmt: skip
    assert condition(status, "Rebalanced")[:2] == ("Unknown", "Rebalancing")
    assert [await targets.read(pod) for pod in pods] == [RebalanceTarget(200, 200), RebalanceTarget(210)]
    assert 0 < integer(await namespace.store.submit("PTTL", schema.REBALANCE)) <= REBALANCE_MS
    status = await passes(namespace, reconciler, 1, pods, (205, 195))
    assert condition(status, "Rebalanced")[:2] == ("True", "Even")
    assert (status["phase"], status["rebalance"]["toMove"]) == ("Ready", 0)
    assert [await targets.read(pod) for pod in pods] == [None, None]
    events = [reason for reason, _ in await namespace.events() if reason.startswith("Rebalance")]
    assert sorted(events) == ["RebalanceEnded", "RebalanceStarted"]


async def test_load_balancer_that_pins_becomes_a_condition_and_an_event(namespace: OperatorNamespace) -> None:
    reconciler, pods = await uneven(namespace)
    for moved in range(14):
        await namespace.beat(pods[0], 400, moved=moved * 40)
        await namespace.beat(pods[1], 0)
        status = await namespace.reconcile(reconciler)
    held, reason, message = condition(status, "Rebalanced")
    assert (held, reason) == ("False", "LoadBalancerPins")
    assert "links were moved in the last 90 s and came back" in message
    assert status["rebalance"]["state"] == "Stopped"
    assert status["phase"] == "Ready"
    (text,) = [message for reason, message in await namespace.events() if reason == "LoadBalancerPins"]
    assert text.startswith("Rebalanced: ")


async def test_nothing_is_written_when_the_rebalance_is_switched_off(namespace: OperatorNamespace) -> None:
    reconciler, pods = await uneven(namespace, rebalance={"enabled": False})
    status = await passes(namespace, reconciler, 5)
    assert condition(status, "Rebalanced")[1:] == ("Waiting", "no links are moved: rebalance.enabled is false")
    assert await RebalanceTargets(namespace.store).read(pods[0]) is None


async def test_pod_is_not_removed_while_links_are_moved(namespace: OperatorNamespace) -> None:
    reconciler, pods = await uneven(namespace, scaling={"windowSeconds": 30, "failureTolerance": 0})
    assert (await passes(namespace, reconciler, 4, pods, (100, 0)))["phase"] == "Rebalancing"
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"replicas": {"min": 1}}})
    status = await passes(namespace, reconciler, 5, pods, (100, 0))
    assert status["phase"] == "Rebalancing"
    assert status["decision"]["reason"] == "1 pod would suffice, but links are being moved from full pods to others"


async def test_a_change_of_the_deployment_outside_its_template_does_not_interrupt_it(
    namespace: OperatorNamespace,
) -> None:
    """The pass that applies the change reads the Deployment before its controller has seen it."""
    reconciler, pods = await uneven(namespace)
    assert (await passes(namespace, reconciler, 4, pods, (400, 0)))["phase"] == "Rebalancing"
    for seconds in (31, 32, 33):
        before = (await namespace.deployment())["metadata"]["generation"]
        limit = {"spec": {"rollingUpdate": {"minReadySeconds": seconds}}}
        await namespace.admin.patch("LinkGateway", namespace.name, "edge", limit)
        status = await passes(namespace, reconciler, 1, pods, (400 - seconds, seconds))
        assert (await namespace.deployment())["metadata"]["generation"] > before
        assert (status["phase"], condition(status, "Rebalanced")[1]) == ("Rebalancing", "Rebalancing")
    assert "RebalanceEnded" not in {reason for reason, _ in await namespace.events()}


async def test_unready_pods_that_leave_new_links_to_others_serve_and_do_not_block_evictions(
    namespace: OperatorNamespace,
) -> None:
    reconciler = namespace.reconciler(await namespace.gateway(replicas={"min": 4, "max": 4}))
    await namespace.reconcile(reconciler)
    pods = await namespace.run_pods(4)
    before = await passes(namespace, reconciler, 4, pods, (400, 400, 0, 0))
    assert before["phase"] == "Rebalancing"
    targets = [await RebalanceTargets(namespace.store).read(pod) for pod in pods]
    assert [target and target.enough for target in targets] == [200, 200, None, None]
    for pod in pods[:2]:
        await namespace.beat(pod, 400, excluded_by="rebalance", spare_accept_rate=0)
        await namespace.run(pod, ready=False)
    status = await passes(namespace, reconciler, 2)
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
    await namespace.until("the budget to allow an eviction", lambda: evictions_allowed(namespace, 1))
    uid = next(one["metadata"]["uid"] for one in await namespace.pods() if one["metadata"]["name"] == pods[3])
    await namespace.operator.evict(namespace.name, pods[3], uid)
    for pod in pods[:2]:
        await namespace.beat(pod, 200)
        await namespace.run(pod)
    await passes(namespace, reconciler, 2)
    budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
    assert budget["spec"]["maxUnavailable"] == 1


async def test_a_pass_without_redis_remembers_which_pods_leave_new_links_to_others(
    namespace: OperatorNamespace,
) -> None:
    reconciler, pods = await uneven(namespace)
    await passes(namespace, reconciler, 4, pods, (400, 0))
    await namespace.beat(pods[0], 400, excluded_by="rebalance")
    await namespace.run(pods[0], ready=False)
    assert (await passes(namespace, reconciler, 1))["readyReplicas"] == 2
    secret = await namespace.admin.get("Secret", namespace.name, "redis")
    await namespace.admin.delete("Secret", namespace.name, "redis", secret["metadata"]["uid"])
    status = await passes(namespace, reconciler, 4)
    assert condition(status, "RedisReachable")[0] == "False"
    inputs = status["decision"]["inputs"]
    assert (inputs["ready"], inputs["pending"], inputs["excluded"]) == (2, 0, 1)
    assert condition(status, "Ready")[:2] == ("True", "Serving")
    budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
    assert budget["spec"]["maxUnavailable"] == 2
    # Its node has taken new links again for long: that it is unready has another reason now.
    status = await passes(namespace, reconciler, 1)
    assert (status["decision"]["inputs"]["ready"], condition(status, "Ready")[0]) == (1, "False")


async def evictions_allowed(namespace: OperatorNamespace, count: int) -> bool:
    budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
    return bool(budget.get("status", {}).get("disruptionsAllowed") == count)


@pytest.mark.parametrize("rebalance", [{"thresholdPercent": 1}, {"minDifference": 0}], ids=str)
async def test_invalid_thresholds_are_refused_by_the_api_server(
    namespace: OperatorNamespace, rebalance: Object
) -> None:
    with pytest.raises(ApiServerRefused, match="should be greater than or equal to"):
        await namespace.gateway(rebalance=rebalance)
