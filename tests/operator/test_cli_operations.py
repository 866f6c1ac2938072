"""`fairlead drain` and `rebalance` against a real API server: the command line as a process, the operator beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from fairlead_operator.runtime.reconciler import Reconciler

from support.control_plane import ControlPlane
from support.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.timeout(
    400
)  # each command imports the client of Kubernetes: seconds, and many on a busy machine


@dataclass
class Ended:
    code: int
    out: str
    err: str


class CommandLine:
    """`fairlead …` as a user of the cluster runs it."""

    def __init__(self, namespace: OperatorNamespace, plane: ControlPlane) -> None:
        self._cluster = ("--kubeconfig", str(plane.admin), "--namespace", namespace.name)

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        arguments = (sys.executable, "-P", "-m", "fairlead", *words, *self._cluster)
        return await asyncio.create_subprocess_exec(
            *arguments, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL
        )

    async def run(self, *words: str) -> Ended:
        return await self.end(await self.start(*words))

    async def end(self, process: asyncio.subprocess.Process) -> Ended:
        out, err = await asyncio.wait_for(process.communicate(), 300)
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def complete(self, *words: str) -> list[str]:
        typed = ["fairlead", words[0], *self._cluster, *words[1:]]
        env = {"_FAIRLEAD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "fairlead", env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 300)
        return [line.partition(",")[2] for line in out.decode().splitlines() if line]


@pytest.fixture
def line(namespace: OperatorNamespace, control_plane: ControlPlane) -> CommandLine:
    return CommandLine(namespace, control_plane)


async def fleet(namespace: OperatorNamespace) -> tuple[Reconciler, list[str]]:
    reconciler = namespace.reconciler(await namespace.gateway())
    await namespace.reconcile(reconciler)
    names = await namespace.run_pods(2)
    for name in names:
        await namespace.beat(name, 10)

    async def allowed() -> bool:
        budget = await namespace.admin.get("PodDisruptionBudget", namespace.name, "edge")
        return bool(budget.get("status", {}).get("disruptionsAllowed") == 1)

    await namespace.until("the budget to allow an eviction", allowed)
    return reconciler, names


@asynccontextmanager
async def operator(namespace: OperatorNamespace, reconciler: Reconciler) -> AsyncIterator[None]:
    """An operator, and a kubelet that makes every pod ready at once."""

    async def loop() -> None:
        while True:
            await namespace.reconcile(reconciler)
            for pod in await namespace.pods():
                if "deletionTimestamp" not in pod["metadata"] and "phase" not in (pod.get("status") or {}):
                    await namespace.run(pod["metadata"]["name"])
                if (pod.get("status") or {}).get("phase") == "Pending":
                    await namespace.run(pod["metadata"]["name"])
                await namespace.beat(pod["metadata"]["name"], 10)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(loop())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_drain_waits_for_the_end_and_reports_the_progress(
    namespace: OperatorNamespace, line: CommandLine
) -> None:
    reconciler, (pod, _) = await fleet(namespace)
    async with operator(namespace, reconciler):
        done = await line.run("drain", "edge", pod, "--reason", "a bad disk", "--wait", "100", "--keep", "60")
    assert done.code == 0, done.err
    name = done.out.strip()
    assert name.startswith("edge-drain-")
    assert f"{pod} is gone; 2 pods are ready" in done.err.splitlines()[-1]
    assert done.err.splitlines()[-1].startswith("Succeeded Completed: ")
    spec = (await namespace.admin.get("LinkOperation", namespace.name, name))["spec"]
    assert (spec["pod"], spec["reason"], spec["ttlSecondsAfterFinished"]) == (pod, "a bad disk", 60)
    assert pod not in [one["metadata"]["name"] for one in await namespace.pods()]


async def test_drain_of_an_unknown_pod_fails_and_says_why(namespace: OperatorNamespace, line: CommandLine) -> None:
    reconciler, _ = await fleet(namespace)
    async with operator(namespace, reconciler):
        done = await line.run("drain", "edge", "edge-nobody", "--wait")
    assert done.code == 1
    assert "Failed PodNotFound: the LinkGateway edge has no running pod edge-nobody" in done.err


async def test_rebalance_is_created_and_cancelled_without_an_operator(
    namespace: OperatorNamespace, line: CommandLine
) -> None:
    await namespace.gateway()
    created = await line.run("rebalance", "edge")
    assert (created.code, created.out.startswith("edge-rebalance-")) == (0, True)
    assert f"kubectl --namespace {namespace.name} get linkoperation {created.out.strip()}" in created.err
    waited = await line.run("rebalance", "edge", "--wait", "2")
    assert waited.code == 4
    assert "Waiting for the operator\n" in waited.err
    assert "has not ended within 2 s; it continues" in waited.err
    cancelled = await line.run("rebalance", "edge", "--cancel")
    assert cancelled.code == 0
    assert set(cancelled.out.split()) == {created.out.strip(), waited.out.strip()}
    for name in cancelled.out.split():
        assert (await namespace.admin.get("LinkOperation", namespace.name, name))["spec"]["cancel"] is True
    again = await line.run("rebalance", "edge", "--cancel")
    assert (again.code, again.out) == (1, "")
    assert "edge has no Rebalance that could be cancelled" in again.err


async def test_cancel_ends_the_command_that_waits(namespace: OperatorNamespace, line: CommandLine) -> None:
    reconciler, names = await fleet(namespace)
    await namespace.operate("first", type="Drain", pod=names[0], cancel=False)
    await namespace.place(names[0])  # it will not end, so what comes after it waits
    async with operator(namespace, reconciler):
        waiting = await line.start("rebalance", "edge", "--wait", "100")
        assert waiting.stderr is not None
        stderr_line = ""
        while "Queued" not in stderr_line:
            stderr_line = (await asyncio.wait_for(waiting.stderr.readline(), 60)).decode()
            assert stderr_line
        assert (await line.run("rebalance", "edge", "--cancel")).code == 0
        done = await line.end(waiting)
    assert done.code == 1
    assert done.err.splitlines()[-1] == "Failed Cancelled: cancelled"


async def test_what_does_not_exist_is_named(namespace: OperatorNamespace, line: CommandLine) -> None:
    done = await line.run("rebalance", "nowhere")
    assert done.code == 2
    assert f"the LinkGateway nowhere does not exist in the namespace {namespace.name}" in done.err
    assert not await namespace.admin.items("LinkOperation", namespace.name)


async def test_the_shell_completes_gateways_and_their_pods(namespace: OperatorNamespace, line: CommandLine) -> None:
    _, names = await fleet(namespace)
    assert await line.complete("rebalance", "e") == ["edge"]
    assert await line.complete("drain", "edge", "edge-") == names


async def test_disconnect_asks_for_what_its_options_say(namespace: OperatorNamespace, line: CommandLine) -> None:
    await namespace.gateway()
    refused = await line.run("disconnect", "edge", "web-1", "-l", "env=prod")
    assert refused.code == 2
    assert "expected either --selector, or their ids after GATEWAY" in refused.err
    done = await line.run(
        "disconnect", "edge", "web-1", "web-2", "--rate", "7", "--retry-after", "3", "--deadline", "90"
    )
    assert done.code == 0, done.err
    spec = (await namespace.admin.get("LinkOperation", namespace.name, done.out.strip()))["spec"]
    assert spec["disconnect"] == {"agents": ["web-1", "web-2"], "ratePerSecond": 7, "retryAfterSeconds": 3}
    assert (spec["type"], spec["activeDeadlineSeconds"]) == ("Disconnect", 90)
