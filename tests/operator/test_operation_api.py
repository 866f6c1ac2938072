"""LinkOperations as the API server and kubectl show them: what is refused, what cannot change, what can be awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead_operator.kube.errors import ApiServerRefused
from fairlead_operator.kube.objects import Object

from support.control_plane import ControlPlane
from support.operations import settled_fleet
from support.operator_namespace import OperatorNamespace

KUBECTL = Path(__file__).resolve().parents[2] / ".cache" / "cluster" / "bin" / "kubectl"
"""Built with the API server that the fixtures start."""


@pytest.mark.timeout(150)
async def test_kubectl_can_show_and_wait_for_an_operation_but_not_change_it(
    namespace: OperatorNamespace, control_plane: ControlPlane
) -> None:
    async def kubectl(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            KUBECTL, f"--kubeconfig={control_plane.admin}", f"--namespace={namespace.name}", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 110)
        return process.returncode or 0, out.decode()

    reconciler, (one, _) = await settled_fleet(namespace)
    await namespace.operate("away", type="Drain", pod=one)
    await namespace.reconcile(reconciler)
    await namespace.beat(one, 7)
    waiting = asyncio.create_task(kubectl("wait", "--for=condition=Complete", "lop/away", "--timeout=100s"))
    await namespace.reconcile(reconciler)
    _, shown = await kubectl("get", "lop")
    head, row = (line.split() for line in shown.splitlines())
    assert head == ["NAME", "GATEWAY", "TYPE", "POD", "PHASE", "LEFT", "AGE"]
    assert row[:-1] == ["away", "edge", "Drain", one, "Running", "7"]
    change = '{"spec": {"pod": "another"}}'
    failed, output = await kubectl("patch", "lop", "away", "--type=merge", f"--patch={change}")
    assert failed
    assert "cannot be changed" in output
    await namespace.end(one)
    await namespace.run_pods(2)
    await namespace.reconcile(reconciler)
    assert await waiting == (0, "linkoperation.fairlead.dev/away condition met\n")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"type": "Drain"}, "a Drain must name its pod"),
        ({"type": "Restart", "pod": "a"}, "a Drain must name its pod"),
        ({"type": "Rebalance", "pod": "a"}, "a Drain must name its pod"),
        ({"type": "Sometimes"}, "Unsupported value"),
        ({"type": "Restart", "ttlSecondsAfterFinished": -1}, "greater than or equal to 0"),
        ({"type": "Disconnect"}, "must say in `disconnect`"),
        ({"type": "Disconnect", "disconnect": {}}, "either a selector or agents"),
        ({"type": "Disconnect", "disconnect": {"agents": ["x"], "selector": "a=b"}}, "either a selector or agents"),
        ({"pod": "a"}, "Required value"),
        ({"type": "Drain", "pod": "a,status.phase=Running"}, "should match"),
        ({"type": "Restart", "activeDeadlineSeconds": 5}, "greater than or equal to 30"),
    ],
)
async def test_invalid_operations_are_refused_by_the_api_server(
    namespace: OperatorNamespace, asked: Object, why: str
) -> None:
    with pytest.raises(ApiServerRefused, match=why):
        await namespace.operate("away", **asked)


async def test_operation_spec_cannot_be_changed(namespace: OperatorNamespace) -> None:
    await namespace.operate("away", type="Drain", pod="one")
    for change in ({"pod": "another"}, {"type": "Restart", "pod": None}, {"activeDeadlineSeconds": 60}):
        with pytest.raises(ApiServerRefused, match="cannot be changed"):
            await namespace.admin.patch("LinkOperation", namespace.name, "away", {"spec": change})
