"""A canary of a new pod template on a real API server: how it begins, what is compared, and how each end looks.

The Deployment's controllers are real, the kubelets are played, and the nodes' rows are written by the gateway's code.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from fairlead.fleet.directives.preferred_revision import PreferredRevisions
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.fleet.reports.traffic import BOUNDS, Traffic
from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED
from fairlead_operator.kube.workload_status import is_terminating
from fairlead_operator.resources.deployment import HELD_SECONDS
from fairlead_operator.runtime.reconciler import Reconciler

from support.operator_namespace import ANYTHING, OperatorNamespace, condition

OLD, NEW, NEWER = "fairlead/gateway:test", "fairlead/gateway:next", "fairlead/gateway:later"
CANARY = {"percent": 10, "seconds": 60, "minLinks": 10, "minCommands": 20}
FAST, SLOW = (6, 20)
"""Buckets of overheads: some 10 ms and some second."""


def served(accepted: int = 0, ended: int = 0, bucket: int = FAST, **more: int) -> Traffic:
    overheads = [0] * (len(BOUNDS) + 1)
    overheads[bucket] = ended
    return Traffic(accepted=accepted, ended=ended, overheads=tuple(overheads), **more)


class CanaryFleet:
    """A fleet of some pods that accepted a template, and whatever a test does to it."""

    def __init__(self, namespace: OperatorNamespace) -> None:
        self.namespace = namespace
        self.old: list[str] = []
        self.traffic: dict[str, Traffic] = {}
        self.links: dict[str, int] = {}
        self.reconciler: Reconciler

    async def start(self, pods: int = 2, **spec: object) -> CanaryFleet:
        namespace = self.namespace
        asked: dict[str, Any] = {"rollout": {"canary": CANARY}, "rollingUpdate": {"minReadySeconds": 0}, **spec}
        self.reconciler = namespace.reconciler(await namespace.gateway(**asked))
        for _ in range(pods // 2):  # a new fleet begins with one pod
            await namespace.reconcile(self.reconciler)
        self.old = await namespace.run_pods(pods)
        for name in self.old:
            self.links[name], self.traffic[name] = 100, served(1000, 5000, lost=7, failed=11)
        await self.reconcile()
        return self

    async def reconcile(self, passes: int = 1, seconds: float = 10.0) -> Object:
        status: Object = {}
        for _ in range(passes):
            for pod in await self.namespace.pods():
                name = pod["metadata"]["name"]
                if name in self.traffic:
                    await self.namespace.beat(name, self.links[name], traffic=self.traffic[name])
            status = await self.namespace.reconcile(self.reconciler, seconds=seconds)
        return status

    async def change(self, **spec: object) -> None:
        await self.namespace.admin.patch("LinkGateway", self.namespace.name, "edge", {"spec": spec})

    async def images(self) -> dict[str, str]:
        """The image of each pod that stays."""
        return {
            pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"]
            for pod in await self.namespace.pods()
            if not is_terminating(pod)
        }

    async def pods_of(self, image: str, count: int) -> list[str]:
        async def found() -> list[str] | None:
            names = sorted(name for name, one in (await self.images()).items() if one == image)
            return names if len(names) == count else None

        names: list[str] = await self.namespace.until(f"{count} pods of {image}", found)
        return names

    async def serve(self, name: str, links: int = 10, traffic: Traffic | None = None) -> None:
        """A pod runs, and its node reports."""
        await self.namespace.run(name)
        self.links[name], self.traffic[name] = links, traffic or served()

    async def begin(self, image: str = NEW) -> str:
        """A new template, whose canary has one pod; returns its name."""
        await self.change(image=image)
        await self.reconcile()
        (name,) = await self.pods_of(image, 1)
        await self.reconcile()
        await self.serve(name)
        return name

    def count(self, name: str, **more: int) -> None:
        """The node of `name` counts further; commands that end are fast."""
        before = self.traffic[name]
        self.traffic[name] = before + served(**more)

    async def stays(self, names: list[str]) -> bool:
        """Whether these pods stay and no others."""
        return set(await self.images()) == set(names)

    async def template(self) -> str:
        return str((await self.namespace.deployment())["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.fixture
async def canary(namespace: OperatorNamespace) -> CanaryFleet:
    return await CanaryFleet(namespace).start()


async def test_canary_that_serves_as_well_replaces_all_pods_and_keeps_its_own(canary: CanaryFleet) -> None:
    namespace, name = canary.namespace, await canary.begin()
    status = await canary.reconcile()
    deployment = (await namespace.deployment())["spec"]
    assert (deployment["minReadySeconds"], deployment["replicas"]) == (HELD_SECONDS, 2)
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert status["phase"] == "Canary"
    assert condition(status, "CanarySucceeded")[:2] == ("Unknown", "Comparing")
    assert (status["canary"]["state"], status["canary"]["pods"], status["canary"]["links"]) == ("Running", 1, 10)
    assert condition(status, "Progressing")[2].endswith("a canary is compared with the other pods")
    canary.count(name, accepted=30, ended=40, failed=1)
    for old in canary.old:
        canary.count(old, accepted=30, ended=40)
    status = await canary.reconcile(5)
    assert set(await canary.images()) == {*canary.old, name}, "nobody goes while the canary is compared"
    status = await canary.reconcile(2)
    held, reason, message = condition(status, "CanarySucceeded")
    assert (held, reason) == ("True", "ServesAsWell")
    assert "30 links and 40 commands" in message
    assert status["canary"]["state"] == "Promoting"
    assert (await PreferredRevisions(namespace.store).read()).until == 0, "no new links are directed during a canary"

    # The other new pods are made beside the canary's, and the old ones stay until those are ready as well.
    await canary.reconcile()
    new = await canary.pods_of(NEW, 2)
    assert name in new
    for one in new:
        await canary.serve(one, canary.links.get(one, 0), canary.traffic.get(one))
    status = await canary.reconcile()
    assert (await PreferredRevisions(namespace.store).read()).name != ""
    assert status["canary"]["state"] == "Succeeded"
    await canary.reconcile()
    assert (await namespace.deployment())["spec"].get("minReadySeconds", 0) == 0
    await namespace.until("the old pods to go", lambda: canary.stays(new))
    await namespace.run_pods(2)
    status = await canary.reconcile()
    assert condition(status, "Progressing")[0] == "False"
    assert condition(status, "CanarySucceeded")[0] == "True"
    assert sorted(reason for reason, _ in await namespace.events() if "Canary" in reason) == [
        "CanaryStarted", "CanarySucceeded",
    ]  # fmt: skip
    (kept,) = await namespace.admin.items("ControllerRevision", namespace.name)
    assert kept["data"]["spec"]["template"]["spec"]["containers"][0]["image"] == NEW
    assert kept["metadata"]["ownerReferences"][0]["kind"] == "LinkGateway"


@pytest.mark.parametrize(
    ("measurement", "traffic"),
    [
        ("LinksLost", served(accepted=40, ended=50, lost=20)),
        ("LinksRejected", served(rejected=60)),
        ("CommandsFailed", served(accepted=40, ended=50, failed=25)),
        ("CommandsSlow", served(accepted=40, ended=50, bucket=SLOW)),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_canary_that_serves_worse_goes_and_is_not_tried_again(
    canary: CanaryFleet, measurement: str, traffic: Traffic
) -> None:
    namespace, name = canary.namespace, await canary.begin()
    await canary.reconcile()
    canary.traffic[name] = traffic
    for old in canary.old:
        canary.count(old, accepted=30, ended=100)
    status = await canary.reconcile()
    held, reason, message = condition(status, "CanarySucceeded")
    assert (held, reason) == ("False", measurement)
    assert re.match(r"\d+ of \d+ \D+.* on the canary; the share of the other pods would be ", message)
    assert message.endswith("the pods keep the accepted template until the spec asks for another one")
    assert status["canary"]["state"] == "Failed"
    (found,) = [one for one in status["canary"]["measurements"] if one["name"] == measurement]
    assert found["count"] > found["limit"]
    (event,) = [text for reason, text in await namespace.events() if reason == measurement]
    assert event.startswith("CanarySucceeded: ")
    await canary.reconcile()
    await namespace.until("the canary to go", lambda: canary.stays(canary.old))
    status = await canary.reconcile(3)
    assert await canary.template() == OLD
    assert condition(status, "CanarySucceeded")[:2] == ("False", measurement)
    assert status["phase"] == "Ready"
    assert (await namespace.deployment())["spec"].get("minReadySeconds", 0) == 0
    assert set(await canary.images()) == set(canary.old), "and is not tried again"


async def test_the_pods_of_a_failed_canary_have_no_more_links_than_the_budget_moves_in_time(
    namespace: OperatorNamespace,
) -> None:
    """A Deployment that returns to an earlier template terminates all pods of the later one at once, whatever holds it.
    So half of the pods would be a canary that the budget of 1,000 links cannot empty; it has one pod."""
    rollout = {"canary": {**CANARY, "percent": 50}}
    moves, replicas = {"maxPerSecond": 5}, {"min": 4, "max": 10}
    fleet = await CanaryFleet(namespace).start(4, rollout=rollout, replicas=replicas, moves=moves)
    for pod in fleet.old:
        await namespace.place(pod)
        fleet.links[pod], fleet.traffic[pod] = 600, served(1000, 5000)
    await fleet.reconcile(2)
    bad = await fleet.begin()
    await namespace.place(bad)
    fleet.links = dict.fromkeys(fleet.old, 450) | {bad: 600}
    await fleet.reconcile(2)
    fleet.traffic[bad] = served(rejected=60)
    for pod in fleet.old:
        fleet.count(pod, accepted=30, ended=100)
    status = await fleet.reconcile()
    assert condition(status, "CanarySucceeded")[:2] == ("False", "LinksRejected")
    for _ in range(6):
        if await fleet.stays(fleet.old):
            break
        await fleet.reconcile()
    assert [pod["metadata"]["name"] for pod in await namespace.pods() if is_terminating(pod)] == [bad]
    assert await fleet.template() == OLD


async def test_another_template_gets_a_canary_of_its_own_and_the_accepted_one_needs_none(canary: CanaryFleet) -> None:
    first = await canary.begin()
    await canary.reconcile(4)
    await canary.change(image=NEWER)
    await canary.reconcile()
    (second,) = await canary.pods_of(NEWER, 1)
    await canary.reconcile()
    await canary.serve(second)
    status = await canary.reconcile(2)
    assert set(await canary.images()) == {*canary.old, second} != {*canary.old, first}
    assert condition(status, "CanarySucceeded")[:2] == ("Unknown", "Comparing")
    assert status["canary"]["watchedSeconds"] <= 20, "the comparison begins anew"
    await canary.change(image=OLD)
    status = await canary.reconcile()
    assert status.get("canary") is None
    assert not any(one["type"] == "CanarySucceeded" for one in status["conditions"])
    await canary.namespace.until("the canary to go", lambda: canary.stays(canary.old))


async def test_canary_that_crashes_fails_with_its_last_words(canary: CanaryFleet) -> None:
    await canary.change(image=NEW)
    await canary.reconcile()
    (name,) = await canary.pods_of(NEW, 1)
    ended = {"exitCode": 2, "reason": "Error", "message": "reading settings\nFAIRLEAD_CAPACITY: not a number"}
    container: Object = {
        "name": "gateway", "image": NEW, "imageID": "", "ready": False, "started": False, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    }  # fmt: skip
    body = {"status": {"phase": "Running", "containerStatuses": [container]}}
    await canary.namespace.admin.patch("Pod", canary.namespace.name, name, body, "status")
    status = await canary.reconcile()
    held, reason, message = condition(status, "CanarySucceeded")
    assert (held, reason) == ("False", "Crashing")
    text = "its container exited with code 2 and restarts: FAIRLEAD_CAPACITY: not a number; the pods keep"
    assert message.startswith(f"{name}: {text}")
    await canary.reconcile()
    await canary.namespace.until("the canary to go", lambda: canary.stays(canary.old))


async def test_canary_that_never_serves_fails(canary: CanaryFleet) -> None:
    await canary.change(image=NEW)
    await canary.reconcile()
    await canary.pods_of(NEW, 1)
    status = await canary.reconcile(3)
    assert condition(status, "CanarySucceeded") == ("Unknown", "Starting", "0 of 1 pod serve")
    status = await canary.reconcile(20, seconds=30)
    held, reason, message = condition(status, "CanarySucceeded")
    assert (held, reason) == ("False", "NotReady")
    assert message.startswith("0 of 1 pod serve, 600 s after")


async def test_new_leader_continues_a_canary_and_watches_it_for_its_whole_time(canary: CanaryFleet) -> None:
    namespace, name = canary.namespace, await canary.begin()
    await canary.reconcile(4)
    canary.reconciler = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    status = await canary.reconcile(2)
    assert (status["canary"]["state"], status["canary"]["watchedSeconds"]) == ("Running", 10)
    assert set(await canary.images()) == {*canary.old, name}
    status = await canary.reconcile(6)
    assert condition(status, "CanarySucceeded")[:2] == ("Unknown", "Comparing"), "too little traffic to judge anything"
    status = await canary.reconcile(12)
    assert condition(status, "CanarySucceeded")[:2] == ("True", "TooLittleTraffic")
    assert len([reason for reason, _ in await namespace.events() if reason == "CanaryStarted"]) == 1


async def test_the_first_pass_of_a_new_leader_keeps_the_pods_of_a_canary(namespace: OperatorNamespace) -> None:
    canary = await CanaryFleet(namespace).start(
        4, rollout={"canary": {**CANARY, "percent": 50}}, replicas={"min": 4, "max": 8}, capacity=100
    )
    await canary.change(image=NEW)
    await canary.reconcile(2)
    await canary.pods_of(NEW, 2)
    canary.reconciler = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    await canary.reconcile()
    assert (await namespace.deployment())["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 2


async def test_failed_canary_stays_failed_for_a_new_leader(canary: CanaryFleet) -> None:
    namespace, name = canary.namespace, await canary.begin()
    await canary.reconcile()
    canary.traffic[name] = served(accepted=40, lost=30)
    await canary.reconcile()
    canary.reconciler = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    status = await canary.reconcile()
    assert condition(status, "CanarySucceeded")[:2] == ("False", "LinksLost")
    assert await canary.template() == OLD

    async def gone() -> bool:
        """The first passes of a leader take the template back in steps: they do not know how many links will move."""
        await canary.reconcile()
        return await canary.stays(canary.old)

    await namespace.until("the canary to go", gone)


async def test_accepted_template_that_the_policy_forbids_now_is_not_applied_again(
    namespace: OperatorNamespace,
) -> None:
    canary = await CanaryFleet(namespace).start(pod={"annotations": {"team.example/port": "9000"}})
    await canary.change(pod={"annotations": None})
    name = await canary.begin()
    await canary.reconcile()
    canary.traffic[name] = served(accepted=40, lost=30)
    await canary.reconcile()
    body = await namespace.admin.get("LinkGateway", namespace.name, "edge")
    canary.reconciler = namespace.reconciler(
        body, policy=msgspec.structs.replace(ANYTHING, pod_annotations=("other/*",))
    )
    status = await canary.reconcile(2)
    held, reason, message = condition(status, "Reconciled")
    assert (held, reason) == ("False", "PolicyViolation")
    assert "pod.annotations team.example/port is not allowed (see podAnnotations of the operator's policy)" in message
    assert condition(status, "CanarySucceeded")[:2] == ("False", "LinksLost")
    assert await canary.template() == NEW
    assert set(await canary.images()) == {*canary.old, name}, "no pod goes for it"
    canary.reconciler = namespace.reconciler(body)
    assert condition(await canary.reconcile(), "Reconciled")[0] == "True"
    assert await canary.template() == OLD


async def test_record_of_a_template_that_somebody_else_has_written_is_not_applied(canary: CanaryFleet) -> None:
    namespace, name = canary.namespace, await canary.begin()
    await canary.reconcile()
    canary.traffic[name] = served(accepted=40, lost=30)
    await canary.reconcile()
    (kept,) = await namespace.admin.items("ControllerRevision", namespace.name)
    planted = msgspec.json.decode(msgspec.json.encode(kept))
    planted["data"]["spec"]["template"]["spec"]["hostNetwork"] = True
    planted["metadata"] = {
        key: value for key, value in kept["metadata"].items() if key in ("labels", "namespace", "ownerReferences")
    } | {"name": "planted"}
    kind = {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
    await namespace.admin.create({**kind, **planted, "revision": kept["revision"] + 1})
    canary.reconciler = namespace.reconciler(await namespace.admin.get("LinkGateway", namespace.name, "edge"))
    status = await canary.reconcile()
    assert condition(status, "Reconciled") == (
        "False",
        "PolicyViolation",
        "the accepted pod template is not applied again: the operator does not write spec.hostNetwork so",
    )
    assert "hostNetwork" not in (await namespace.deployment())["spec"]["template"]["spec"]


async def test_canary_that_is_switched_off_accepts_its_template(canary: CanaryFleet) -> None:
    await canary.begin()
    await canary.reconcile()
    await canary.change(rollout={"canary": None})
    status = await canary.reconcile()
    assert status.get("canary") is None
    assert (await canary.namespace.deployment())["spec"].get("minReadySeconds", 0) == 0
    assert await canary.template() == NEW
    await canary.change(rollout={"canary": CANARY})
    status = await canary.reconcile()
    assert status.get("canary") is None, "the template was accepted"
    assert await canary.template() == NEW


async def test_links_are_moved_until_the_canary_has_its_share(canary: CanaryFleet) -> None:
    namespace, name = canary.namespace, await canary.begin()
    targets = RebalanceTargets(namespace.store)
    canary.links |= {canary.old[0]: 600, canary.old[1]: 300, name: 0}
    await canary.reconcile()
    # A tenth of 900 agents may move for it, and every third of those lands on it.
    asked = [await targets.read(pod) for pod in (*canary.old, name)]
    assert asked == [RebalanceTarget(580), RebalanceTarget(290), None]
    canary.links |= {canary.old[0]: 560, canary.old[1]: 250, name: 90}
    await canary.reconcile()
    assert [await targets.read(pod) for pod in (*canary.old, name)] == [None, None, None]


@pytest.mark.parametrize("verb", ["list", "patch"])
async def test_without_the_right_to_keep_templates_none_goes_out_untried(
    namespace: OperatorNamespace, verb: str
) -> None:
    await namespace.allow(*NAMESPACED, *LEASE, without=("controllerrevisions", verb))
    reconciler = namespace.reconciler(await namespace.gateway(rollout={"canary": CANARY}))
    status = await namespace.reconcile(reconciler)
    held, reason, message = condition(status, "Reconciled")
    assert (held, reason) == ("False", "AccessDenied")
    assert "controllerrevisions" in message
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", {"spec": {"rollout": {"canary": None}}})
    status = await namespace.reconcile(reconciler)
    assert condition(status, "Reconciled")[0] == "True"
