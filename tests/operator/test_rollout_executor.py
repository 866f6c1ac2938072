"""A rollout in steps on a real API server: what the Deployment's controllers make of each step.

The controllers are real, the kubelets are played: a pod runs when the test says so, and terminates when it says so.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fairlead.fleet.directives.preferred_revision import PreferredRevisions
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED
from fairlead_operator.kube.workload_status import is_terminating, revision_of
from fairlead_operator.resources.deployment import HELD_SECONDS
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import OperatorNamespace, condition

LINKS = 600
SPEC: Object = {
    "replicas": {"min": 4, "max": 10},
    "moves": {"maxPerSecond": 5},  # 1,000 links before the last minute of a drain; four pods have 2,400
    "rollingUpdate": {"minReadySeconds": 0},
}


class SteppedRollout:
    """A fleet of four pods, and the kubelets and nodes of all pods that there are."""

    def __init__(self, namespace: OperatorNamespace) -> None:
        self.namespace = namespace
        self.links: dict[str, int] = {}
        """Of each pod whose node reports."""
        self.old: list[str] = []
        self.reconciler: Reconciler

    async def start(self, **spec: object) -> SteppedRollout:
        namespace = self.namespace
        self.reconciler = namespace.reconciler(await namespace.gateway(**{**SPEC, **spec}))
        await namespace.reconcile(self.reconciler)
        await self.reconcile()  # a new fleet begins with one pod
        self.old = await namespace.run_pods(4)
        for name in self.old:
            await namespace.place(name)
        self.links = dict.fromkeys(self.old, LINKS)
        await self.reconcile(2)
        return self

    async def reconcile(self, passes: int = 1) -> Object:
        status: Object = {}
        for _ in range(passes):
            for name, links in self.links.items():
                await self.namespace.beat(name, links)
            status = await self.namespace.reconcile(self.reconciler)
        return status

    async def change(self) -> None:
        patch = {"spec": {"image": "fairlead/gateway:next"}}
        await self.namespace.admin.patch("LinkGateway", self.namespace.name, "edge", patch)

    async def staying(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.namespace.pods() if not is_terminating(pod)]

    async def terminating(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.namespace.pods() if is_terminating(pod)]

    async def new(self, count: int) -> list[str]:
        """The new pods, once there are so many; they become ready and report."""

        async def made() -> list[str] | None:
            found = [name for name in await self.staying() if name not in self.old]
            return found if len(found) == count else None

        names: list[str] = await self.namespace.until(f"{count} new pods", made)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        for name in names:
            if name not in self.links:
                await self.namespace.run(name, since=now)
                await self.namespace.place(name)
                self.links[name] = 0
        return names

    async def limits(self) -> tuple[object, object, int]:
        spec = (await self.namespace.deployment())["spec"]
        update = spec["strategy"]["rollingUpdate"]
        return update["maxSurge"], update["maxUnavailable"], spec.get("minReadySeconds", 0)

    async def replace_first(self) -> str:
        """Change the template, and let the first old pod terminate; returns its name."""
        await self.change()
        await self.reconcile()
        await self.new(3)
        await self.reconcile(2)
        (first,) = await self.terminating()
        return first

    async def drained(self, name: str, to: list[str]) -> None:
        """The links of a pod that terminates are on others, and it is gone."""
        moved = self.links.pop(name)
        for i, other in enumerate(to):
            self.links[other] += moved // len(to) + (i < moved % len(to))
        await self.namespace.beat(name, 0)
        await self.namespace.end(name)


async def test_old_pods_terminate_as_fast_as_the_budget_moves_their_links(namespace: OperatorNamespace) -> None:
    rollout = await SteppedRollout(namespace).start()
    assert await rollout.limits() == ("100%", 0, 0)
    await rollout.change()
    await rollout.reconcile()
    assert await rollout.limits() == (3, 0, HELD_SECONDS)
    new = await rollout.new(3)
    status = await rollout.reconcile()
    assert await rollout.terminating() == [], "load balancers have not noticed yet where new links go"
    assert (await PreferredRevisions(namespace.store).read()).name
    assert status["phase"] == "RollingOut"

    status = await rollout.reconcile()
    (first,) = await rollout.terminating()
    assert first in rollout.old
    assert await rollout.limits() == (3, 0, HELD_SECONDS), "nothing terminates that no pass has asked for"
    held, reason, message = condition(status, "RolloutWithinBudget")
    assert (held, reason) == ("True", "WithinBudget")
    assert message == (
        "4 pods of old templates are left, and 1 may terminate now: 0 links are moving, and the budget is 5 per second"
    )
    await rollout.new(4)

    rollout.links[first] = 500
    await rollout.reconcile(2)
    assert await rollout.terminating() == [first], "its links and those of another one are more than 1,000"
    rollout.links[first] = 300
    await rollout.reconcile()
    assert len(await rollout.terminating()) == 2

    while going := [name for name in await rollout.terminating() if name in rollout.links]:
        new = await rollout.new(4)
        for name in going:
            await rollout.drained(name, new)
        status = await rollout.reconcile()
        assert len(await rollout.terminating()) <= 2
    status = await rollout.reconcile(2)
    assert sorted(await rollout.staying()) == sorted(new)
    assert await rollout.limits() == ("100%", 0, 0)
    assert condition(status, "Progressing")[0] == "False"
    assert [one["type"] for one in status["conditions"] if one["type"] == "RolloutWithinBudget"] == []


async def test_new_pods_with_their_share_leave_new_links_to_the_others(namespace: OperatorNamespace) -> None:
    rollout = await SteppedRollout(namespace).start()
    await rollout.change()
    await rollout.reconcile()
    first, full, other = await rollout.new(3)
    rollout.links |= dict.fromkeys(rollout.old, 450) | {full: LINKS}
    await rollout.reconcile()
    targets = {name: await RebalanceTargets(namespace.store).read(name) for name in (first, full, other, *rollout.old)}
    limit = RebalanceTarget(1000, LINKS)
    assert targets == dict.fromkeys(targets) | {full: limit, other: limit}, "one takes new links whatever happens"


async def test_a_rollout_stands_still_without_an_operator_and_the_next_leader_goes_on(
    namespace: OperatorNamespace,
) -> None:
    rollout = await SteppedRollout(namespace).start()
    first = await rollout.replace_first()
    await rollout.drained(first, await rollout.new(4))
    assert len(await rollout.staying()) == 7, "three old pods and four new ones serve, and none of them may terminate"
    rollout.reconciler = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    await rollout.reconcile()
    assert await rollout.limits() == (3, 0, HELD_SECONDS)
    assert await rollout.terminating() == []
    await rollout.reconcile()
    assert len(await rollout.terminating()) == 1


async def test_another_change_of_the_template_terminates_no_more_than_the_surge(namespace: OperatorNamespace) -> None:
    """By hand and in the middle of a rollout, so that the operator sees it only in its next pass."""
    rollout = await SteppedRollout(namespace).start()
    first = await rollout.replace_first()
    before = await rollout.new(4)
    await rollout.drained(first, before)
    annotations = {"kubectl.kubernetes.io/restartedAt": "now"}
    template: Object = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    await namespace.admin.patch("Deployment", namespace.name, "edge", template)

    async def made() -> bool:
        pods = [pod for pod in await namespace.pods() if not is_terminating(pod)]
        return len({revision_of(pod) for pod in pods}) == 3 or len(pods) == 4

    await namespace.until("pods of the third template", made)
    assert len(set(await rollout.staying()) & {*rollout.old, *before}) >= 4


@pytest.mark.parametrize("mode", ["DryRun", "External"])
async def test_every_mode_keeps_to_the_budget(namespace: OperatorNamespace, mode: str) -> None:
    rollout = await SteppedRollout(namespace).start()
    patch = {"spec": {"scaling": {"mode": mode}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", patch)
    await rollout.replace_first()
    if mode == "External":  # somebody scales in the middle of it
        await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 5}}, "scale")
        await namespace.until("a pod more", lambda: _count(rollout, 8))
        await rollout.reconcile()
        assert len(await rollout.terminating()) == 1


async def test_no_pod_is_removed_for_fewer_links_before_all_are_replaced(namespace: OperatorNamespace) -> None:
    rollout = await SteppedRollout(namespace).start()
    patch = {"spec": {"replicas": {"min": 2}, "scaling": {"windowSeconds": 30, "stepDownSeconds": 10}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", patch)
    await rollout.reconcile(4)
    first = await rollout.replace_first()
    new = await rollout.new(4)
    await rollout.drained(first, new)
    rollout.links = {name: min(links, 260) for name, links in rollout.links.items()}  # the others have left
    for _ in range(8):
        status = await rollout.reconcile()
        assert (status["decision"]["action"], (await namespace.deployment())["spec"]["replicas"]) == ("Stay", 4)
        for name in [name for name in await rollout.terminating() if name in rollout.links]:
            await rollout.drained(name, new)
    assert set(new) <= set(await rollout.staying())


async def test_a_smaller_scale_in_the_middle_of_it_removes_no_more_pods_than_it_asks_for(
    namespace: OperatorNamespace,
) -> None:
    """Set by somebody else, so Kubernetes removes the pod at once; the steps go on with the smaller fleet."""
    rollout = await SteppedRollout(namespace).start()
    external = {"spec": {"scaling": {"mode": "External"}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", external)
    first = await rollout.replace_first()
    new = await rollout.new(4)
    await rollout.drained(first, new)
    assert len(await rollout.staying()) == 7
    await namespace.admin.patch("Deployment", namespace.name, "edge", {"spec": {"replicas": 3}}, "scale")
    await namespace.until("a pod less", lambda: _count(rollout, 6))
    for _ in range(12):
        staying, going = await rollout.staying(), [one for one in await rollout.terminating() if one in rollout.links]
        assert len(staying) >= 3
        assert sum(rollout.links[name] for name in going) <= 1_000, "what the budget moves before the last minute"
        if len(staying) == 3:
            break
        for name in going:
            await rollout.drained(name, [one for one in staying if one in new])
        await rollout.reconcile()
    assert set(staying) <= set(new), "the old pods have gone"


async def _count(rollout: SteppedRollout, pods: int) -> bool:
    return len(await rollout.staying()) == pods


async def test_a_pod_that_the_budget_cannot_empty_is_reported(namespace: OperatorNamespace) -> None:
    rollout = await SteppedRollout(namespace).start()
    await rollout.change()
    await rollout.reconcile()
    new = await rollout.new(3)
    await rollout.reconcile()

    async def slow() -> Object:
        for name in new:
            await namespace.beat(name, 0, spare_accept_rate=1.0)
        for name in rollout.old:
            await namespace.beat(name, LINKS, excluded_by="rollout")
        return await namespace.reconcile(rollout.reconciler)

    await slow()
    status = await slow()
    held, reason, message = condition(status, "RolloutWithinBudget")
    assert (held, reason) == ("False", "PodTooFull")
    assert message.startswith(
        "an old pod has 600 links, and the budget of 0.5 moves per second empties one of at most 100"
    )
    assert len(await rollout.terminating()) == 1, "one at a time goes all the same"


async def test_without_the_right_to_list_replica_sets_the_deployment_replaces_the_pods(
    namespace: OperatorNamespace,
) -> None:
    rollout = await SteppedRollout(namespace).start()
    await namespace.allow(*NAMESPACED, *LEASE, without=("replicasets", "list"))
    await rollout.change()
    await rollout.reconcile(2)
    assert await rollout.limits() == ("100%", 0, 0)
