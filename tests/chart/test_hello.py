"""The script of `helm test` against two real nodes: the agent's link at one, the platform's call at the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.processes import gateway

SCRIPT = Path(__file__).resolve().parents[2] / "charts" / "fairlead" / "files" / "hello.py"
TOKENS = {"AGENT_TOKEN": "development-agent-token", "PLATFORM_TOKEN": "development-platform-token"}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the script for a fleet of two nodes."""
    folder = tmp_path_factory.mktemp("demo")
    shown = folder / "shown"
    with shown.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-Im", "fairlead", "demo", "--port", "0", "--data", str(folder / "data")],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 40
        while "Ctrl-C ends" not in (text := shown.read_text()):
            assert demo.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        links = re.findall(r"links (ws://\S+),", text)
        apis = re.findall(r"(?m)^  API +(\S+)$", text)[0].split(",")
        yield {"LINK_URL": links[0], "API_URL": apis[1]}
    finally:
        demo.send_signal(signal.SIGINT)
        try:
            demo.wait(20)
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGKILL)
                demo.wait()


def play(environment: dict[str, str], **changed: str) -> subprocess.CompletedProcess[str]:
    # -c as in the pod: the script has no file there. Its own timeout is 90 s.
    return subprocess.run(
        [sys.executable, "-I", "-c", changed.pop("script", SCRIPT.read_text())],
        env={"PATH": os.environ["PATH"], **environment, **TOKENS, **changed},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


# Before the other test: a fleet that remembers the agent would wait 30 s for it to come back.
def test_a_wrong_token_fails_and_says_why(addresses: dict[str, str]) -> None:
    done = play(addresses, script=impatient(), PLATFORM_TOKEN="not-the-right-token")
    assert done.returncode != 0
    assert "no hello through the Service" in done.stderr
    assert "platform token" in done.stderr + done.stdout


def impatient() -> str:
    script = re.sub(r"TIMEOUT = [0-9.]+", "TIMEOUT = 2.0", SCRIPT.read_text())
    assert script != SCRIPT.read_text()
    return script


def test_a_gateway_that_enrols_nobody_gets_the_shared_token(tmp_path: Path) -> None:
    node, links, api, _ = gateway(tmp_path)
    try:
        done = play({"LINK_URL": links, "API_URL": api})
        assert done.returncode == 0, done.stderr
        assert "was welcomed" in done.stdout
        done = play({"LINK_URL": links, "API_URL": api}, script=impatient(), AGENT_TOKEN="not-the-right-token")
        assert done.returncode != 0
        assert "agent token" in done.stderr + done.stdout
    finally:
        node.stop()


@pytest.mark.timeout(240)
def test_an_agent_is_welcomed_and_answers(addresses: dict[str, str]) -> None:
    for _ in range(2):  # again, when the fleet has seen the agent of the first
        # The agent enrols, so that it needs no shared token.
        done = play(addresses, AGENT_TOKEN="not-the-right-token")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "was welcomed" in done.stdout
        assert "stays in the list" not in done.stdout
        headers = {"Authorization": f"Bearer {TOKENS['PLATFORM_TOKEN']}"}
        request = urllib.request.Request(f"{addresses['API_URL']}/v1/agents/helm-test", headers=headers)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(request, timeout=10)
