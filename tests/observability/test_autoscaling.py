"""The dashboard Autoscaling: a real operator on a real API server, with real nodes that fill up, scraped by Prometheus.

The pods are those that the Deployment's controllers made; what runs in them is played by two `fairlead serve` on this
machine under the pods' names. The API server is that of tests/operator: without it this is skipped, or fails in CI.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fairlead_operator.kube import objects

from dashboards import AUTOSCALING
from support.control_plane import ControlPlane
from support.observability.dashboard_answers import answers, shown, table
from support.observability.prometheus_server import RATE, Target, scraping
from support.observability.watched_fleet import WatchedNode, ended, swarm
from support.operator_namespace import OperatorNamespace

TIMEOUT = 90.0
"""The operator runs a pass every ten seconds; the machine may be busy."""
CAPACITY = 60
FEW, MORE = 10, 35
"""Agents at each of two pods: a sixth of the capacity; then more than the target utilisation."""
UNEVEN = 13
"""Agents that one of the pods has more than the other: with them it is too full to receive moves, so the rate falls."""
IDLE = 12.0
"""Seconds: one look, and one that is late."""
STILL = {
    "Wrong removals": "a removal takes the pod that it means; tests/operator plays one that does not",
    "New links directed": "there is no rollout; tests/operator plays one",
    "Removal held": "no pod is unneeded; tests/operator plays what holds one",
    "Other autoscalers": "the mode is not DryRun",
    "Canary": "there is no new pod template; tests/operator plays some",
    "Waiting moves": "no node stops; tests/observability/test_dashboards.py plays a drain",
}
"""Panels that may be the same under this load, and why; all others must move."""
ELSEWHERE = "compared_replicas"
"""The metric that may be missing: it is there in the mode DryRun only, which tests/operator plays."""


class Operator:
    """One operator's process, with the rights of the table."""

    def __init__(self, folder: Path, kubeconfig: Path, namespace: str) -> None:
        self._log = folder / "operator.log"
        environment = {
            "PATH": os.environ["PATH"], "USER": "test", "KUBECONFIG": str(kubeconfig), "POD_NAME": "operator-1",
            "POD_NAMESPACE": namespace, "FAIRLEAD_OPERATOR_NAMESPACES": namespace,
            "FAIRLEAD_OPERATOR_HTTP": "127.0.0.1:0",
        }  # fmt: skip
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-Im", "fairlead_operator"], env=environment, stdout=sink, stderr=sink
            )

    def tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-20:])

    async def address(self) -> str:
        deadline = time.monotonic() + TIMEOUT
        while not (found := re.search(r"health on (\S+)", self._log.read_text())):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            await asyncio.sleep(0.1)
        return found[1]


def mute(namespace: str, port: int) -> dict[str, Any]:
    """Somebody who is asked before the status of a LinkGateway is written, and never answers: a 500 after a second."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"mute-in-{namespace}"},
        "webhooks": [
            {
                "name": "mute.fairlead.test",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
                "rules": [
                    {
                        "apiGroups": ["fairlead.dev"], "apiVersions": ["*"], "operations": ["UPDATE"],
                        "resources": ["linkgateways/status"],
                    }
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            }
        ],
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_real_prometheus_scrapes_the_operator_while_it_scales(
    prometheus_program: str,
    namespace: OperatorNamespace,
    control_plane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations")
    monkeypatch.setitem(objects.KINDS, "ValidatingWebhookConfiguration", place)
    await namespace.gateway(capacity=CAPACITY, replicas={"min": 2, "max": 3}, scaling={"failureTolerance": 0})
    with ExitStack() as stack:
        operator = Operator(tmp_path, control_plane.operator, namespace.name)
        stack.enter_context(ended(operator.process))
        names = await namespace.run_pods(2)
        nodes = [WatchedNode(tmp_path, name, namespace.redis, "--capacity", str(CAPACITY)) for name in names]
        targets = [Target("operator", await operator.address(), {}), *(node.target() for node in nodes)]
        prometheus = stack.enter_context(scraping(tmp_path, targets))

        async def wait_for(expr: str) -> None:
            try:
                await asyncio.to_thread(prometheus.wait_for, expr, TIMEOUT)
            except AssertionError as e:
                raise AssertionError(f"{e}; the operator's last words:\n{operator.tail()}") from e

        for node in nodes:
            stack.enter_context(ended(node.process))
            stack.enter_context(swarm(node, node.name, FEW))
        await wait_for(f"fairlead_operator_reported_links == {2 * FEW}")
        await wait_for("fairlead_operator_ready_replicas == 2 and fairlead_operator_stale_reports == 0")
        # What the start was is out of sight of the rates after this.
        began = time.time() + RATE + 2
        await asyncio.sleep(RATE + 2 + IDLE)
        idle = (began, time.time())

        for node, more in zip(nodes, (MORE, MORE + UNEVEN), strict=True):
            stack.enter_context(swarm(node, f"more-{node.name}", more))
        await wait_for("fairlead_operator_desired_replicas == 3")
        # Agents of a swarm come back to the node that they left, so the links stay uneven.
        await namespace.operate("spread", type="Rebalance")
        await wait_for("fairlead_operator_rebalance_links > 0")
        await wait_for("sum(fairlead_moves_total) > 0")
        # The third pod is ready, and nothing in it ever beats.
        await namespace.run_pods(3)
        # A second LinkGateway, of which the API server takes no status: looks at it last, and are given up.
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        webhook = await namespace.admin.create(mute(namespace.name, listener.getsockname()[1]))
        try:
            await namespace.gateway("second")
            await wait_for("fairlead_operator_gateways == 2")
            await wait_for("increase(fairlead_operator_reconcile_failures_total[10s]) > 0")
        finally:
            name, uid = webhook["metadata"]["name"], webhook["metadata"]["uid"]
            await namespace.admin.delete("ValidatingWebhookConfiguration", "", name, uid)
        await wait_for("fairlead_operator_stale_reports == 1")
        # An API server that does not answer at all: the lease runs out.
        stack.callback(control_plane.server.send_signal, signal.SIGCONT)
        control_plane.server.send_signal(signal.SIGSTOP)
        await wait_for("fairlead_operator_leader == 0")
        await asyncio.sleep(RATE)
        given = list(answers(prometheus, [AUTOSCALING], idle, (idle[1], time.time())))
    print(table(given))
    assert [one.name for one in given if not one.busy and ELSEWHERE not in one.query.expr] == []
    unmoved = [f"{one.name}: {shown(one.idle)}; {shown(one.busy)}" for one in given if not one.moved]
    assert [line for line in unmoved if not any(f": {title}: " in line for title in STILL)] == []
