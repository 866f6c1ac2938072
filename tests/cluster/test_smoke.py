"""The images on a real cluster: an agent outside comes in through the Ingress, and a command goes out to it.

What the chart and the operator make of it is tested elsewhere; this is the shortest way from an image to a command, and
it says that the pods are admitted as restricted ones with a read-only root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kube import INGRESS, Kube, behind, find

from fairlead.version import __version__

HOST = "smoke.fairlead.test"
AGENT_TOKEN, PLATFORM_TOKEN = "agents-of-the-smoke-test", "platform-of-the-smoke-test"
FAIRLEAD = [sys.executable, "-m", "fairlead"]


@pytest.fixture
def kube() -> Kube:
    """Skipped loudly where there is no cluster, failed in CI, which has to have one."""
    found = find()
    if isinstance(found, Kube):
        return found
    if os.environ.get("CI"):
        pytest.fail(found)
    pytest.skip(found)


@pytest.mark.timeout(240)
def test_an_agent_outside_runs_a_command_from_the_service(kube: Kube, tmp_path: Path) -> None:
    manifests = Path(__file__).with_name("smoke.yaml").read_text().replace("VERSION", __version__)
    with kube.namespace("fairlead-smoke") as namespace:
        here = ("--namespace", namespace)
        kube.kubectl(*here, "apply", "--validate=strict", "-f", "-", stdin=manifests)
        for name in ("valkey", "gateway"):
            kube.kubectl(*here, "rollout", "status", f"deployment/{name}", "--timeout=90s", timeout=100)
        service = kube.get(*here, "service", "gateway")["spec"]["clusterIP"]
        platform = {**os.environ, "FAIRLEAD_API": f"http://{service}:8081", "FAIRLEAD_TOKEN": PLATFORM_TOKEN}

        def said(*arguments: str) -> str:
            done = subprocess.run(
                [*FAIRLEAD, *arguments], env=platform, capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        url = f"ws://{HOST}:{INGRESS.rpartition(':')[2]}"
        with (tmp_path / "agent.log").open("wb") as log:
            agent = subprocess.Popen(
                behind(tmp_path / "hosts", [HOST], *FAIRLEAD, "agent", "run", "--id", "outside", "--url", url),
                env={**os.environ, "FAIRLEAD_AGENT_TOKEN": AGENT_TOKEN},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            try:
                kube.until("the agent online", lambda: "outside" in said("agents", "ls", "--state", "online"), 30)
            except AssertionError:
                print((tmp_path / "agent.log").read_text(), file=sys.stderr)
                raise
            # Both pods are asked in turn by the Service; one of them has no link to the agent.
            assert {said("exec", "outside", "--", "echo", f"call {n}") for n in range(6)} == {
                f"call {n}\n" for n in range(6)
            }
        finally:
            agent.terminate()
            agent.wait(30)
