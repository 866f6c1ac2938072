"""The life of one release on a real cluster, in chapters: each begins where the one before it ended.

`make e2e` plays it and stops at the first chapter that fails. From the third chapter on commands run on agents outside
the cluster without a pause; the tenth looks back at all of them: none was lost, none was answered twice.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
sys.path.insert(0, str(Path(__file__).parent))

from evidence import ACCESS, AUDIT, links, most_in_a_second, now, writes
from kube import INGRESS, Kube, find
from release import CAPACITY, HOST, RATE, RELEASE, WINDOW, is_ready, name
from scene import FAIRLEAD, URL, Scene, sleep

pytestmark = pytest.mark.timeout(420)
NAMESPACE = "fairlead-e2e"
UNKNOWN, ASKS_FOR_AN_UPGRADE = 404, 426
"""What a plain request gets from the Ingress controller for a host it has no rule for, and from a gateway."""
WORKERS = 20
FIRST, MORE = 279, 600
SHELL = 1
FEW, MANY = FIRST + WORKERS + SHELL, FIRST + WORKERS + SHELL + MORE
"""300, then 900."""


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The release, its agents and its callers, from the first chapter to the last."""
    if os.environ.get("FAIRLEAD_E2E") != "1":
        pytest.skip("the end-to-end story is played by `make e2e`")
    kube = find()
    if not isinstance(kube, Kube):
        pytest.fail(kube)
    failed = request.session.testsfailed
    with (
        kube.namespace(NAMESPACE) as namespace,
        Scene(kube, namespace, tmp_path_factory.mktemp("e2e")) as scene,
    ):
        yield scene
        if request.session.testsfailed > failed:
            scene.tell()


def test_1_nobody_is_at_the_host_before_the_release(scene: Scene) -> None:
    assert at_the_host() == UNKNOWN, (
        "an Ingress for all hosts stands in this cluster; the story needs its host for itself"
    )
    scene.note("the Ingress controller knows no such host")


def test_2_helm_install_makes_a_gateway_that_is_ready(scene: Scene) -> None:
    release = scene.release
    release.install()
    release.kubectl("wait", "--for=condition=Ready", f"linkgateway/{RELEASE}", "--timeout=90s", timeout=100)
    status = release.status()
    assert status["observedGeneration"] == release.gateway()["metadata"]["generation"]
    assert status["readyReplicas"] >= 2
    owners = release.deployment()["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in owners] == [("LinkGateway", RELEASE)]
    release.helm("test", RELEASE, "--timeout", "90s")
    scene.note("helm install, LinkGateway Ready, helm test passed")


def test_3_agents_come_through_the_ingress_and_only_there(scene: Scene) -> None:
    release = scene.release
    release.until("the gateway at its host", lambda: at_the_host() == ASKS_FOR_AN_UPGRADE, 30)
    scene.workers(WORKERS)
    scene.start("shell", *FAIRLEAD, "agent", "run", "--id", "shell", "--url", URL)
    scene.swarm("first", FIRST, rate=100)
    took = scene.linked(FEW, 60)
    if ACCESS.exists():
        assert scene.open_connections() >= FEW
    scene.call(WORKERS, rate=4.0)
    scene.note(f"{FEW} agents linked through {HOST} in {took:.0f} s")


def test_4_exec_through_the_service_of_the_platform(scene: Scene) -> None:
    for number in range(6):
        assert scene.exec("shell", "echo", f"call {number}") == f"call {number}\n"
    scene.note("fairlead exec, six times through the Service")


def test_5_the_fleet_grows_and_the_operator_says_why(scene: Scene) -> None:
    release = scene.release
    before = release.deployment()["spec"]["replicas"]
    scene.swarm("more", MORE, rate=60)
    least = -(-MANY * 100 // (70 * CAPACITY))
    scaled = release.until(f"{least} replicas", lambda: release.deployment()["spec"]["replicas"] >= least, 30)
    decision = release.status()["decision"]
    assert decision["action"] in ("Up", "Stay")
    assert decision["winner"]
    assert decision["reason"]
    assert decision["bounds"]["load"] >= least > before
    ready = release.until("all replicas ready", lambda: len(ready_pods(scene)) >= least, 90)
    linked = scene.linked(MANY, 90)
    after = release.deployment()["spec"]["replicas"]
    scene.note(
        f"{before} to {after} replicas {scaled:.0f} s after {MORE} more agents began, "
        f"ready {ready:.0f} s later, all linked {linked:.0f} s later: {decision['winner']}: {decision['reason']}"
    )


def test_6_a_rollout_under_traffic_loses_no_agent_and_closes_at_the_pace(scene: Scene) -> None:
    release = scene.release
    release.steady(15, 120)
    since, old = now(), {name(pod) for pod in release.pods("gateway")}
    ended_before = caller_ends(scene)
    release.kubectl("rollout", "restart", f"deployment/{RELEASE}")
    release.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=300s", timeout=310)
    release.until("the old pods gone", lambda: not old & {name(pod) for pod in release.pods("gateway")}, 90)
    back = scene.linked(MANY, 90)
    assert caller_ends(scene) > ended_before
    pace = "unknown"
    if ACCESS.exists():
        moved = links(HOST, since)
        assert len(moved) >= MANY - FEW
        most = most_in_a_second(moved)
        # The pace of one pod, and what jitter and a busy machine push into the same second.
        assert max(most.values()) <= 1.5 * RATE + 5, most
        pace = f"{max(most.values())} in a second"
    assert [program.name for program in scene.programs.values() if not program.running] == []
    scene.note(f"rollout done, all {MANY} back {back:.0f} s after it; closed at most {pace}")


def test_7_the_fleet_shrinks_and_one_pod_at_a_time_goes(scene: Scene) -> None:
    release = scene.release
    release.steady(15, 120)
    scene.programs["more"].stop()
    assert scene.programs["more"].complaints() == {}, scene.programs["more"].tail()
    start = release.deployment()["spec"]["replicas"]
    costs: dict[str, int] = {}
    going: list[str] = []
    sizes = [start]
    changes = [time.monotonic()]

    def watch() -> bool:
        pods = release.pods("gateway")
        terminating = [name(pod) for pod in pods if "deletionTimestamp" in pod["metadata"]]
        assert len(terminating) <= 1, f"{terminating} go at once"
        for victim in terminating:
            if victim not in going:
                going.append(victim)
                assert costs.get(victim) == min(costs.values()), f"{victim} went: {costs}"
        costs.clear()
        costs.update({name(pod): cost(pod) for pod in pods if "deletionTimestamp" not in pod["metadata"]})
        wanted = int(release.deployment()["spec"]["replicas"])
        if wanted != sizes[-1]:
            sizes.append(wanted)
            changes.append(time.monotonic())
        return wanted <= 3 and len(pods) == wanted

    took = release.until("three replicas or fewer", watch, 300)
    assert all(after == before - 1 for before, after in pairwise(sizes)), sizes
    assert len(going) >= start - 3
    # The need of the window's beginning still counts; a little less, for those who left before the last did.
    waited = changes[1] - changes[0]
    assert waited >= WINDOW - 10, f"the first pod went after {waited:.0f} s"
    scene.linked(FEW, 60)
    scene.note(f"{start} to {sizes[-1]} replicas in {took:.0f} s, one by one: {sizes}, the first after {waited:.0f} s")


def test_8_a_frozen_leader_is_replaced_and_writes_nothing_when_it_wakes(scene: Scene) -> None:
    release = scene.release
    old = release.leader()
    (pod,) = [pod for pod in release.pods("operator") if name(pod) == old]
    restarts = restart_count(scene, old)
    release.signal(pod, signal.SIGSTOP)
    frozen = now()
    try:
        took = release.until("another leader", lambda: release.leader() != old, 20)
        decided = release.status()["decision"]["at"]
        works = release.until("a decision of the other", lambda: release.status()["decision"]["at"] > decided, 30)
        sleep(max(0.0, 40 - (now() - frozen).total_seconds()))
    finally:
        release.signal(pod, signal.SIGCONT)
    woken = now()
    sleep(20)
    assert restart_count(scene, old) == restarts, "the frozen pod was restarted before it could wake"
    wrote = "not looked at: this cluster has no audit log"
    if AUDIT.exists():
        by_old = [write for write in writes(old, woken) if write.resource != "events"]
        assert by_old == []
        leader = release.leader()
        assert [write for write in writes(leader, frozen) if write.resource != "leases"]
        wrote = "nothing"
    scene.note(f"another leader after {took:.1f} s, it decided {works:.0f} s later; the old one, woken, wrote {wrote}")


def test_9_the_operator_holds_while_valkey_is_away_and_heals(scene: Scene) -> None:
    release = scene.release
    before = release.deployment()["spec"]["replicas"]
    (valkey,) = release.pods("valkey")
    release.signal(valkey, signal.SIGSTOP)
    held = release.until("the operator holding", lambda: release.status()["decision"]["action"] == "Hold", 45)
    assert release.deployment()["spec"]["replicas"] >= before
    # Killed in its sleep: what it had not synced is gone, what it had acknowledged a second before is not.
    release.signal(valkey, signal.SIGKILL)
    healed = release.until("decisions again", lambda: release.status()["decision"]["action"] != "Hold", 90)
    back = scene.linked(FEW, 60)
    assert scene.exec("shell", "echo", "again") == "again\n"
    scene.note(
        f"held after {held:.0f} s, decides again {healed:.0f} s after the restart, {FEW} links {back:.0f} s later"
    )


def test_10_helm_upgrade_keeps_the_fleet_and_no_command_was_lost(scene: Scene) -> None:
    release = scene.release
    before = release.deployment()
    release.upgrade("gateways.default.logLevel=warning", "operator.logLevel=warning")
    release.until(
        "the new template",
        lambda: release.deployment()["metadata"]["generation"] > before["metadata"]["generation"],
        60,
    )
    release.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=300s", timeout=310)
    release.kubectl("wait", "--for=condition=Ready", f"linkgateway/{RELEASE}", "--timeout=90s", timeout=100)
    assert release.deployment()["spec"]["replicas"] >= before["spec"]["replicas"]
    scene.linked(FEW, 90)
    assert scene.callers is not None
    scene.callers.finish()
    judgement = scene.callers.judge()
    assert judgement.clean, judgement.describe()
    assert judgement.outcomes == {"ok": judgement.commands}
    assert judgement.commands > 400
    scene.note(f"helm upgrade; {judgement.commands} commands since chapter 3: all ok, none lost, none twice")


def test_11_helm_uninstall_leaves_the_crd_and_nothing_else(scene: Scene) -> None:
    release = scene.release
    for program in scene.programs.values():
        program.stop()
    assert scene.programs["first"].complaints() == {}, scene.programs["first"].tail()
    if ACCESS.exists():
        assert len(links(HOST, scene.began)) >= MANY
    release.helm("uninstall", RELEASE, "--wait", "--timeout", "90s")
    took = release.until("an empty namespace", lambda: not remains(scene), 90)
    assert "linkgateways.fairlead.dev" in release.kubectl("get", "crds", "--output=name")
    release.until("the host unknown again", lambda: at_the_host() == UNKNOWN, 30)
    scene.note(f"uninstalled; the namespace was empty {took:.0f} s later")


def at_the_host() -> int:
    """What the Ingress controller answers to an agent's request for that host."""
    request = urllib.request.Request(f"http://{INGRESS}/v1/link", headers={"Host": HOST})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


def ready_pods(scene: Scene) -> list[str]:
    return [name(pod) for pod in scene.release.pods("gateway") if is_ready(pod)]


def cost(pod: dict[str, dict[str, dict[str, str]]]) -> int:
    return int(pod["metadata"].get("annotations", {}).get("controller.kubernetes.io/pod-deletion-cost", "0"))


def caller_ends(scene: Scene) -> int:
    assert scene.callers is not None
    return scene.callers.ended()


def restart_count(scene: Scene, pod: str) -> int:
    found = scene.release.get("pod", pod)
    return sum(container["restartCount"] for container in found["status"]["containerStatuses"])


def remains(scene: Scene) -> list[str]:
    """What is left in the namespace that every namespace does not have."""
    release = scene.release
    kinds = release.kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").split()
    counted = [kind for kind in kinds if kind not in ("events", "events.events.k8s.io")]
    found = release.kubectl("get", ",".join(counted), "--output=name", "--ignore-not-found", timeout=60).split()
    return [one for one in found if one not in ("configmap/kube-root-ca.crt", "serviceaccount/default")]
