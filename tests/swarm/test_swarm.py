"""`fairlead swarm` with a real gateway: its counts are true, and its exit code reports losses."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN

from support.plain_http import plain_get, plain_post, plain_put

if TYPE_CHECKING:
    from swarm.conftest import MakeSwarm, MakeSwarmGateway

    from support.gateway_process import ServeProcess
    from support.swarm_process import Swarm

pytestmark = pytest.mark.timeout(240)  # of processes that start and stop, on a machine that may do much else

PLATFORM = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}", "accept": "application/x-ndjson"}
OCTETS = {"content-type": "application/octet-stream"}


def run(api: str, agent: str, method: str, payload: object, **more: object) -> tuple[bytes, dict[str, Any]]:
    """One command: its output and its end."""
    body = {"agent": agent, "method": method, "payload": payload, "deadline": 20, **more}
    answer = plain_post(f"{api}/v1/commands", json=body, headers=PLATFORM, timeout=30)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines() if line not in ("", "{}")]
    return "".join(line.get("text", "") for line in lines).encode(), lines[-1]["end"]


def run_with_input(api: str, agent: str, payload: object, data: bytes) -> dict[str, Any]:
    """A script that names no content, and is sent one as its input: its end."""
    body = {"agent": agent, "method": "script", "payload": payload, "deadline": 20, "unchecked": True}
    posted = plain_post(f"{api}/v1/commands", json=body, headers={**PLATFORM, "accept": "application/json"})
    assert posted.status_code == 202, posted.text
    path = f"{api}/v1/commands/{posted.json()['id']}"
    sent = plain_post(f"{path}/input?n=0&end=true", content=data, headers=PLATFORM | OCTETS)
    assert sent.status_code == 204, sent.text
    answer = plain_get(f"{path}/results?follow=true", headers=PLATFORM, timeout=30)
    return dict(json.loads(answer.text.splitlines()[-1])["end"])


def test_simulated_agents_read_the_content_of_a_script(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    one = swarm(gateway.link, "--agents=3", "--rate=300", "--id-prefix=script")
    one.until_holding()
    content = random.Random(1).randbytes(300_000)  # several chunks, and more than a window
    digest = hashlib.sha256(content).hexdigest()
    stored = plain_put(f"{gateway.api}/v1/contents/{digest}", content=content, headers=PLATFORM | OCTETS)
    assert stored.is_success, stored.text
    for _ in range(2):  # nothing is kept
        arguments = {"digest": digest, "size": len(content)}
        output, end = run(gateway.api, "script-1", "script", arguments, content=digest)
        assert (len(output), end["state"]) == (64, "ok")
    end = run_with_input(gateway.api, "script-2", {"digest": digest, "size": len(content)}, b"other octets")
    assert (end["state"], end["error"]["code"]) == ("failed", "content_mismatch"), end


def test_idle_agents_connect_send_heartbeats_answer_and_leave(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    one = swarm(
        gateway.link,
        "--agents=60",
        "--processes=2",
        "--rate=300",
        "--id-prefix=idle",
        "--source=127.0.0.2-3",
    )
    one.until_holding()
    began = time.monotonic()
    assert plain_get(f"{gateway.api}/v1/agents/idle-59", headers=PLATFORM).json()["state"] == "online"
    assert len(run(gateway.api, "idle-59", "exec", {"argv": ["anything"]})[0]) == 64
    assert run(gateway.api, "idle-0", "echo", "hello")[0] == b'"hello"'
    time.sleep(max(0.0, began + 4 - time.monotonic()))  # what is counted is what comes in four seconds
    one.process.send_signal(signal.SIGINT)
    seconds = time.monotonic() - began
    result = one.result()
    assert one.process.returncode == 0, one.log
    assert (result["ok"], result["linked"], result["lost"], result["processes"]) == (True, 60, 0, 2)
    assert result["connect"]["welcome"]["count"] == result["connect"]["attempts"] == 60
    assert result["connect"]["dial"]["p50_ms"] <= result["connect"]["welcome"]["p99_ms"]
    assert result["commands"]["answered"] == result["commands"]["received"] == 2
    # A beat in each second.
    assert 30 * seconds <= result["heartbeats"]["sent"] <= 100 * seconds
    assert result["heartbeats"]["sent"] - result["heartbeats"]["answered"] <= 60
    deadline = time.monotonic() + 30
    while plain_get(f"{gateway.api}/v1/agents/idle-59", headers=PLATFORM).json()["state"] == "online":
        assert time.monotonic() < deadline, "it has not left"
        time.sleep(0.05)


def test_an_idle_agent_takes_less_than_a_kilobyte(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    flags = ("--agents=4000", "--processes=1", "--rate=2000", "--duration=0", "--id-prefix=small")
    result = swarm(gateway.link, *flags, "--source=127.0.0.2-3").result(200)
    assert result["linked"] == 4000
    # A megabyte that the process takes once, whatever the number of agents, is in the figure.
    assert 300 < result["generator"]["bytes_per_agent"] < 1_100


def test_output_larger_than_a_window_survives_storms_unchanged(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    one = swarm(gateway.link, "--agents=8", "--rate=100", "--profile=storm", "--storm-every=1", "--id-prefix=storm")
    one.until_holding()
    with ThreadPoolExecutor(8) as pool:
        runs = [
            pool.submit(run, gateway.api, f"storm-{i % 8}", "exec", {"argv": ["x"], "bytes": 700_000 + i})
            for i in range(24)
        ]
        outputs = [one_run.result() for one_run in runs]
    assert [len(output) for output, _ in outputs] == [700_000 + i for i in range(24)]
    assert {end["state"] for _, end in outputs} == {"ok"}
    one.process.send_signal(signal.SIGINT)
    result = one.result()
    assert result["storm"]["dropped"] >= 8
    assert (result["commands"]["received"], result["lost"], result["violations"]) == (24, 0, 0)


def test_chatty_slow_and_half_open_agents_behave_as_their_profile(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    flags = ("--agents=30", "--rate=100", "--profile=chatty=1,slow=1,half-open=1", "--event-every=0.5", "--duration=9")
    one = swarm(gateway.link, *flags, "--id-prefix=mixed")
    one.until_holding()
    time.sleep(1)  # slow ones have stopped reading by then; what follows holds sooner or later all the same
    found = plain_get(f"{gateway.api}/v1/agents", params={"selector": "profile=slow,swarm=mixed"}, headers=PLATFORM)
    slow = found.json()["agents"][0]["id"]
    assert run(gateway.api, slow, "exec", {"argv": ["x"]})[1]["state"] == "ok"
    result = one.result()
    assert one.process.returncode == 0, one.log
    assert result["half_open"]["ended_by_gateway"] >= 10
    assert result["half_open"]["unnoticed"] == 0
    assert result["closed"].keys() == {"4008"}
    assert 100 <= result["events"]["sent"] <= 400
    assert result["events"]["stored"] >= result["events"]["sent"] - 20


def test_agents_that_are_taken_over_count_as_gone(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    first = swarm(gateway.link, "--agents=10", "--rate=100", "--id-prefix=twin")
    first.until_holding()
    second = swarm(gateway.link, "--agents=10", "--rate=100", "--id-prefix=twin", "--duration=2")
    assert second.result()["ok"]
    first.process.send_signal(signal.SIGTERM)
    result = first.result()
    assert (result["gone"], result["closed"], result["ok"]) == (10, {"4507": 10}, False)
    assert first.process.returncode == 1


def test_a_killed_gateway_counts_as_having_lost_all_links(make_gateway: MakeSwarmGateway, swarm: MakeSwarm) -> None:
    gateway = make_gateway("--accept-rate=5000")
    one = swarm(gateway.link, "--agents=20", "--rate=100", "--duration=3", "--id-prefix=killed")
    one.until_holding()
    gateway.process.kill()
    gateway.process.wait()
    result = one.result()
    assert (result["lost"], result["missing"], one.process.returncode) == (20, 20, 1)
    assert result["connect"]["refused"]["unreachable"] > 0


def test_refusals_are_counted_and_waited_out(make_gateway: MakeSwarmGateway, swarm: MakeSwarm) -> None:
    gateway = make_gateway("--accept-rate=10")
    one = swarm(gateway.link, "--agents=30", "--rate=1000", "--duration=0", "--id-prefix=refused")
    result = one.result()
    assert one.process.returncode == 0, one.log
    assert result["linked"] == 30
    assert result["connect"]["refused"]["429"] == result["connect"]["attempts"] - 30 > 0
    assert result["ramp_s"] > 1


def test_a_wrong_token_is_reported(gateway: ServeProcess, swarm: MakeSwarm) -> None:
    one = swarm(gateway.link, "--agents=3", "--rate=100", "--token=wrong")
    one.process.communicate(timeout=60)
    assert one.process.returncode == 3
    assert "no agent could connect" in one.log
    assert "401" in one.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--agents=3000000", "--processes=2"), "open files each"),
        (("--profile=lazy",), "invalid profile 'lazy'"),
        (("--source=127.0.0.9-2",), "127.0.0.9-2"),
        (("--agents=60000", "--processes=100"), "--source"),
        (("--id-prefix=a b",), "invalid agent id"),
        (("--url=http://x",), "expected ws://HOST or wss://HOST"),
        (("--url=ws://gateway.example",), "no token"),
    ],
)
def test_invalid_options_exit_with_2_before_the_start(flags: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "swarm", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_agents_of_a_drained_worker_count_as_moved_and_not_as_lost(
    make_gateway: MakeSwarmGateway, swarm: MakeSwarm
) -> None:
    gateway = make_gateway("--accept-rate=5000", "--workers=2")
    one = swarm(gateway.link, "--agents=60", "--rate=600", "--id-prefix=moved")
    one.until_holding()
    for worker in psutil.Process(gateway.process.pid).children():
        if sum(c.status == psutil.CONN_ESTABLISHED for c in worker.net_connections("tcp")) > 10:
            worker.terminate()
            worker.wait(20)
            break
    else:
        pytest.fail("no worker holds links")
    wait_for_agents(gateway.api, "moved", 60, one)
    one.process.send_signal(signal.SIGINT)
    result = one.result()
    assert one.process.returncode == 0, one.log
    assert result["moved"] >= 10
    assert (result["linked"], result["lost"]) == (60, 0)


def wait_for_agents(api: str, prefix: str, count: int, swarm: Swarm) -> None:
    """Until so many are online."""
    deadline = time.monotonic() + 30
    while True:
        found = agents_of(api, prefix)
        absent = [agent for agent in found if agent["state"] != "online"]
        if len(found) - len(absent) == count:
            return
        assert time.monotonic() < deadline, (len(found), absent, swarm.log)
        time.sleep(0.1)


def agents_of(api: str, prefix: str) -> list[dict[str, Any]]:
    """Those of one swarm, whatever others have left in the fleet: a page goes through some of them only."""
    found: list[dict[str, Any]] = []
    params = {"selector": f"swarm={prefix}", "limit": "500"}
    while True:
        page = plain_get(f"{api}/v1/agents", params=params, headers=PLATFORM).json()
        found += page["agents"]
        if not page.get("cursor"):
            return found
        params["cursor"] = page["cursor"]
