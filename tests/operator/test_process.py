"""The operator's process with only the rights of the table: two replicas, a freeze, a signal, a frozen API server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from fairlead_operator.kube.objects import Object
from fairlead_operator.kube.rbac import LEASE, NAMESPACED

from support.control_plane import ControlPlane
from support.operator_namespace import OperatorNamespace
from support.operator_replica import Replica

TAKEOVER = 20.0
"""Seconds. Computed: 13 of silence, a read of the Lease every 2, and one call."""


async def scaled(namespace: OperatorNamespace, replicas: int) -> bool:
    found = await namespace.admin.find("Deployment", namespace.name, "edge")
    return found is not None and found["spec"]["replicas"] == replicas


async def least(namespace: OperatorNamespace, replicas: int) -> None:
    body = {"spec": {"replicas": {"min": replicas}}}
    await namespace.admin.patch("LinkGateway", namespace.name, "edge", body)


@pytest.mark.timeout(150)
async def test_second_replica_takes_over_after_a_freeze_and_after_a_signal(
    namespace: OperatorNamespace, start: Callable[[str], Replica]
) -> None:
    await namespace.gateway()
    a = start("a")
    await namespace.until("a to lead", a.leads)
    b = start("b")
    await namespace.until("two pods", lambda: scaled(namespace, 2))

    async def ready() -> bool:
        return (await b.get("/readyz"))[0] == 200

    await namespace.until("b to be ready as a follower", ready)
    assert await b.metric("fairlead_operator_leader") == 0
    assert (await b.get("/livez"))[0] == 200

    # A freeze: the other replica takes over, and the frozen one writes nothing after it wakes.
    written = await a.metric("fairlead_operator_scalings_total")
    a.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    await namespace.until("b to lead", b.leads)
    assert time.monotonic() - began < TAKEOVER
    await least(namespace, 3)
    await namespace.until("three pods", lambda: scaled(namespace, 3))
    a.process.send_signal(signal.SIGCONT)

    async def follows() -> bool:
        found = await namespace.admin.get("Lease", namespace.name, "fairlead-operator")
        return found["spec"]["holderIdentity"].startswith("b_") and await a.metric("fairlead_operator_leader") == 0

    await namespace.until("a to follow", follows)
    await least(namespace, 4)
    await namespace.until("four pods", lambda: scaled(namespace, 4))
    assert await a.metric("fairlead_operator_scalings_total") in (0, written)
    assert await b.metric("fairlead_operator_scalings_total") == 2

    # SIGTERM releases the Lease: the other replica leads after its next read.
    b.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    await namespace.until("a to lead again", a.leads)
    assert time.monotonic() - began < 12, "a Lease that is not released expires after fifteen seconds"
    assert b.process.wait(15) == 0
    await least(namespace, 5)
    await namespace.until("five pods", lambda: scaled(namespace, 5))
    for replica in (a, b):
        assert "Traceback" not in replica.log(), replica.log()


@pytest.mark.timeout(90)
async def test_invalid_resource_is_reported_and_does_not_stop_the_operator(
    namespace: OperatorNamespace, start: Callable[..., Replica]
) -> None:
    policy = '{"all": {"images": ["*"], "secrets": ["*"], "ingressHosts": ["*"]}}'
    a = start("a", FAIRLEAD_OPERATOR_POLICY=policy)
    await namespace.until("a to lead", a.leads)
    wrong: Object = {"redis": {"secretRef": {"name": "nowhere"}}, "ingress": {"className": "nothing"}}
    made = [await namespace.gateway(name, **wrong) for name in ("one", "another")]
    made.sort(key=lambda body: (body["metadata"]["creationTimestamp"], body["metadata"]["uid"]))
    older, younger = (body["metadata"]["name"] for body in made)

    async def conditions(name: str) -> dict[str, tuple[str, str]]:
        found = await namespace.admin.get("LinkGateway", namespace.name, name)
        conditions = found.get("status", {}).get("conditions", [])
        return {one["type"]: (one["status"], one["reason"]) for one in conditions}

    async def reported() -> bool:
        first, second = await conditions(older), await conditions(younger)
        return second.get("Accepted") == ("False", "RedisInUse") and first == first | {
            "SecretsFound": ("False", "NotFound"), "RedisReachable": ("False", "SecretNotFound"),
            "IngressClassFound": ("False", "NotFound"),
        }  # fmt: skip

    await namespace.until("the conditions", reported)
    found = await namespace.admin.get("LinkGateway", namespace.name, older)
    assert "finalizers" not in found["metadata"]
    assert not [name for name in found["metadata"].get("annotations", {}) if "kopf" in name]
    await namespace.admin.delete("LinkGateway", namespace.name, older, made[0]["metadata"]["uid"])

    async def next_one() -> bool:
        return (await conditions(younger)).get("Accepted") == ("True", "Valid")

    await namespace.until("the younger to be accepted once the older is gone", next_one)
    assert a.process.poll() is None
    assert "Traceback" not in a.log(), a.log()


@pytest.mark.timeout(150)
async def test_operation_is_continued_by_the_next_leader(
    namespace: OperatorNamespace, start: Callable[[str], Replica]
) -> None:
    a = start("a")
    await namespace.until("a to lead", a.leads)
    await namespace.operate("nowhere", gateway="missing", type="Restart")

    async def refused() -> bool:
        return bool((await namespace.operation("nowhere")).get("phase") == "Failed")

    await namespace.until("the operation without a LinkGateway to fail", refused)
    message = (await namespace.operation("nowhere"))["message"]
    assert message == f"the LinkGateway missing does not exist in {namespace.name}"

    await namespace.gateway()
    await namespace.until("two pods to be asked for", lambda: scaled(namespace, 2))
    one, other = await namespace.run_pods(2)
    for name in (one, other):
        await namespace.place(name)
        await namespace.beat(name, 10)
    await namespace.operate("away", type="Drain", pod=one)

    async def leaves() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in await namespace.pods())

    await namespace.until("the pod to leave", leaves)
    b = start("b")
    a.process.kill()
    await namespace.until("b to lead", b.leads)
    await namespace.end(one)
    await namespace.run_pods(2)

    async def complete() -> bool:
        return bool((await namespace.operation("away"))["phase"] == "Succeeded")

    await namespace.until("the next leader to tell its end", complete)

    async def counted() -> bool:
        return await b.metric('fairlead_operator_operations_total{outcome="Succeeded",type="Drain"}') == 1

    await namespace.until("the next leader to count it", counted)
    found = await namespace.admin.get("LinkOperation", namespace.name, "away")
    assert "finalizers" not in found["metadata"]
    assert not [name for name in found["metadata"].get("annotations", {}) if "kopf" in name]
    assert "Traceback" not in a.log() + b.log(), b.log()


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_next_leader_knows_what_a_killed_one_has_done(
    namespace: OperatorNamespace, start: Callable[[str], Replica]
) -> None:
    """It neither waits for a window nor forgets the pause between two removals."""
    await namespace.gateway(
        replicas={"min": 3, "max": 10},
        scaling={"windowSeconds": 30, "stepDownSeconds": 3600, "failureTolerance": 0},
    )
    a = start("a")
    await namespace.until("three pods to be asked for", lambda: scaled(namespace, 3))
    names = await namespace.run_pods(3)

    async def beat() -> None:
        while True:
            for name in names:
                await namespace.beat(name, 10)
            await asyncio.sleep(2)

    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat())
        await least(namespace, 1)
        await namespace.until("one pod to be removed", lambda: scaled(namespace, 2), seconds=100)

        async def remembered() -> bool:
            return "continuing the last leader's history" in b.log()

        b = start("b")
        a.process.kill()
        await namespace.until("b to continue", remembered, seconds=60)

        async def reason() -> str:
            if await b.metric("fairlead_operator_scale_decisions_total") < 2:
                return ""
            found = await namespace.admin.get("LinkGateway", namespace.name, "edge")
            return str(found["status"]["decision"]["reason"])

        decision = await namespace.until("its decisions", reason, seconds=60)
        beating.cancel()
    assert "stepDownSeconds is 3600" in decision, decision
    assert await b.metric("fairlead_operator_scalings_total") == 0
    assert "Traceback" not in b.log(), b.log()


@pytest.mark.timeout(90)
async def test_operator_recovers_from_a_frozen_api_server(
    namespace: OperatorNamespace, control_plane: ControlPlane, start: Callable[[str], Replica]
) -> None:
    await namespace.gateway()
    a = start("a")
    await namespace.until("two pods", lambda: scaled(namespace, 2))
    control_plane.server.send_signal(signal.SIGSTOP)
    try:

        async def follows() -> bool:
            return not await a.leads()

        await namespace.until("its lease to run out", follows)
        assert (await a.get("/livez"))[0] == 200

        async def unready() -> bool:
            return (await a.get("/readyz"))[0] == 503

        await namespace.until("it to say that nothing can be done", unready)
    finally:
        control_plane.server.send_signal(signal.SIGCONT)
    await namespace.until("it to lead again", a.leads)
    await least(namespace, 3)
    await namespace.until("three pods", lambda: scaled(namespace, 3))
    assert "Traceback" not in a.log(), a.log()


@pytest.mark.parametrize("kind", ["linkgateways", "linkoperations"])
async def test_operator_without_rights_waits_and_reports_which(
    namespace: OperatorNamespace, start: Callable[[str], Replica], kind: str
) -> None:
    await namespace.allow(*NAMESPACED, *LEASE, without=(kind, "list"))
    a = start("a")

    async def unready() -> str:
        status, text = await a.get("/readyz")
        return text if status == 503 and "cannot list" in text else ""

    assert f'cannot list resource "{kind}"' in await namespace.until("its reason", unready)
    assert a.process.poll() is None


@pytest.mark.timeout(120)
async def test_deleted_namespace_does_not_stop_the_watch_of_others(
    namespace: OperatorNamespace, start: Callable[..., Replica]
) -> None:
    a = start("a", FAIRLEAD_OPERATOR_NAMESPACES=f"{namespace.name},gone")
    await namespace.gateway()
    await namespace.until("two pods", lambda: scaled(namespace, 2))
    assert (await a.get("/readyz"))[0] == 200
    assert 'in the namespace "gone"' in a.log()
    await least(namespace, 3)
    await namespace.until("three pods", lambda: scaled(namespace, 3))
    assert a.process.poll() is None


def test_help_names_every_variable() -> None:
    output = subprocess.run(
        [sys.executable, "-Im", "fairlead_operator", "--help"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    for name in ("NAMESPACES", "LEASE", "HTTP", "POLICY", "LOG_LEVEL", "LOG_FORMAT"):
        assert f"FAIRLEAD_OPERATOR_{name} " in output


def test_settings_report_all_faults_at_once() -> None:
    wrong = {
        "PATH": os.environ["PATH"],
        "FAIRLEAD_OPERATOR_HTTP": "8080",
        "FAIRLEAD_OPERATOR_LOG_LEVEL": "loud",
        "FAIRLEAD_OPERATOR_NAMESPACE": "a",
        "FAIRLEAD_OPERATOR_PORT": "tcp://10.0.0.1:80",
        "FAIRLEAD_OPERATOR_POLICY": '{"all": {"image": ["*"]}}',
    }
    done = subprocess.run(
        [sys.executable, "-Im", "fairlead_operator"], env=wrong, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("  - ")]
    assert [line.split(":")[0] for line in lines] == [
        "  - FAIRLEAD_OPERATOR_NAMESPACE is not a setting", "  - invalid FAIRLEAD_OPERATOR_HTTP '8080'",
        "  - invalid FAIRLEAD_OPERATOR_POLICY", "  - invalid FAIRLEAD_OPERATOR_LOG_LEVEL 'loud'",
    ]  # fmt: skip
