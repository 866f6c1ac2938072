"""The images on a real cluster: agents outside come in by an Ingress and by an HTTPRoute, and commands go out to them.

What the chart and the operator make of it is tested elsewhere; this is the shortest way from an image to a command, and
it says that the pods are admitted as restricted ones with a read-only root. Played by `make e2e`, before the story.
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

HOSTS = {"by-ingress": "smoke.fairlead.test", "by-route": "route.fairlead.test"}
AGENT_TOKEN, PLATFORM_TOKEN = "agents-of-the-smoke-test", "platform-of-the-smoke-test"
FAIRLEAD = [sys.executable, "-m", "fairlead"]


@pytest.fixture
def kube() -> Kube:
    if os.environ.get("FAIRLEAD_E2E") != "1":
        pytest.skip("a cluster and the images are needed: `make e2e`")
    found = find()
    if not isinstance(found, Kube):
        pytest.fail(found)
    return found


@pytest.mark.timeout(240)
def test_agents_outside_run_commands_from_the_service(kube: Kube, tmp_path: Path) -> None:
    manifests = Path(__file__).with_name("smoke.yaml").read_text().replace("VERSION", __version__)
    agents: dict[str, subprocess.Popen[bytes]] = {}
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

        try:
            for name, host in HOSTS.items():
                url = f"ws://{host}:{INGRESS.rpartition(':')[2]}"
                with (tmp_path / f"{name}.log").open("wb") as log:
                    agents[name] = subprocess.Popen(
                        behind(tmp_path / "hosts", list(HOSTS.values()),
                               *FAIRLEAD, "agent", "run", "--id", name, "--url", url),
                        env={**os.environ, "FAIRLEAD_AGENT_TOKEN": AGENT_TOKEN},
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    )  # fmt: skip
            for name in HOSTS:
                try:
                    kube.until(f"{name} online", lambda: name in said("agents", "ls", "--state", "online"), 30)  # noqa: B023
                except AssertionError:
                    print((tmp_path / f"{name}.log").read_text(), file=sys.stderr)
                    raise
                # Both pods are asked in turn by the Service; one of them has no link to the agent.
                for number in range(6):
                    assert said("exec", name, "--", "echo", f"call {number}") == f"call {number}\n"
        finally:
            for agent in agents.values():
                agent.terminate()
                agent.wait(30)
