"""The trial's own instruments: what it reads from the log of the Ingress, how it judges commands, and that its agents
and callers work with a real node and with a real plain server. The trial itself needs a cluster: `make trial`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import ServeProcess
from support.interop.older_version import HistoryMissing
from trial.agents import name
from trial.api import FairleadApi, Limits
from trial.calls import LOST, NOT_SENT, OK, Call, Probe, judge, longest_silence, text
from trial.links import RecordedLink, longest_without, most_within, moves, read_links, seconds_above, skew, spread
from trial.older_fleet import OlderImages
from trial.programs import CallerProgram
from trial.traffic import Pace

HERE = Path(__file__).parent
AGENTS = 6


def logged(path: str, began: str, seconds: float, pod: str, host: str = "h", upgraded: bool = True) -> str:
    entry = {
        "RequestHost": host, "RequestPath": path, "StartUTC": began, "Duration": int(seconds * 1e9),
        "ServiceAddr": f"{pod}:8080",
    }  # fmt: skip
    if upgraded:
        entry["downstream_Sec-Websocket-Accept"] = "x"
    return json.dumps(entry) + "\n"


def test_links_are_the_upgraded_connections_of_the_host_in_the_order_of_their_beginnings() -> None:
    lines = [
        logged("/agents/agent-1", "2026-01-01T00:00:09.123456789Z", 1.0, "10.0.0.2"),
        logged("/v1/link?trial=agent-0", "2026-01-01T00:00:05Z", 2.5, "10.0.0.1"),
        logged("/v1/link?trial=agent-0", "2026-01-01T00:00:05Z", 2.5, "10.0.0.1", upgraded=False),
        logged("/v1/link?trial=agent-0", "2026-01-01T00:00:05Z", 2.5, "10.0.0.1", host="other"),
        logged("/v1/link?trial=agent-0", "2025-12-31T23:59:59Z", 2.5, "10.0.0.1"),
        logged("/v1/link?trial=agent-0", "2026-01-01T00:00:05Z", 2.5, "10.0.0.1")[:-9],
    ]
    midnight = 1767225600.0
    first, second = read_links(lines, "h", midnight)
    assert first == RecordedLink("agent-0", "10.0.0.1", midnight + 5, midnight + 7.5)
    assert (second.agent, second.backend) == ("agent-1", "10.0.0.2")
    assert second.ended == pytest.approx(midnight + 10.123456)


def test_links_that_overlap_leave_no_time_without_one() -> None:
    kept = [RecordedLink("a", "1", 0, 10), RecordedLink("a", "2", 9, 30), RecordedLink("b", "1", 0, 30)]
    assert longest_without(kept, 0, 30) == 0
    broken = [RecordedLink("a", "1", 0, 10), RecordedLink("b", "1", 0, 30), RecordedLink("a", "2", 12.5, 30)]
    assert longest_without(broken, 0, 30) == 2.5
    assert longest_without(broken, 11, 30) == 0, "it began before"
    assert moves(broken, 5, 15) == {"a": 1}


def test_closes_in_a_second_are_counted_over_all_pods_and_any_second() -> None:
    links = [RecordedLink(str(n), str(n % 2), 0, ended) for n, ended in enumerate((1.0, 1.6, 1.9, 2.1, 4.0))]
    ended = [link.ended for link in links]
    assert most_within(1, ended, 0, 10) == 3
    assert most_within(1, ended, 2, 10) == 1
    assert most_within(10, ended, 0, 10) == 5
    assert seconds_above(1, ended, 0, 10) == 1
    assert seconds_above(3, ended, 0, 10) == 0


def test_spread_counts_empty_pods() -> None:
    links = [
        RecordedLink("a", "1", 0, 10),
        RecordedLink("b", "1", 0, 10),
        RecordedLink("c", "2", 0, 10),
        RecordedLink("d", "2", 0, 4),
    ]
    counts = spread(links, ["1", "2", "3"], 5)
    assert counts == {"1": 2, "2": 1, "3": 0}
    assert skew(counts) == 2.0


def call(key: str, posted: float, lines: list[str], outcome: str = OK) -> Call:
    made = Call(key, "a", 2, posted)
    for n, line in enumerate(lines):
        made.receive_line(posted + n + 1, line)
    if outcome == LOST:
        made.fail(posted + 4, "TimeoutError")
        made.give_up(posted + 200)
    else:
        made.end(posted + 5, outcome)
    return made


def test_commands_are_judged_by_what_their_callers_heard_and_their_agents_began() -> None:
    whole = [text("k", 0), text("k", 1)]
    calls = [
        call("k", 0, whole), call("k", 0, [whole[0], whole[0]]), call("k", 0, whole[:1]), call("k", 1, [], LOST),
        call("twice", 2, [text("twice", 0), text("twice", 1)]), call("k", 3, [], "agent_offline"), call("k", 50, whole),
    ]  # fmt: skip
    found = judge(calls, {"k": 1, "twice": 2}, 0, 20)
    assert (found.commands, found.lost, found.twice) == (6, 1, 2)
    assert found.failed == {"broken": 2, "agent_offline": 1}
    assert found.longest_wait == 1


def test_a_command_that_no_connection_could_carry_is_not_lost() -> None:
    unsent, unanswered = Call("a", "a", 2, 10), Call("b", "b", 2, 10)
    for made, sent in ((unsent, False), (unanswered, True)):
        made.fail(15, "ConnectionTimeoutError", sent=sent)
        made.fail(40, "ConnectionTimeoutError", sent=False)
        made.give_up(100)
    assert (unsent.outcome, unanswered.outcome) == (NOT_SENT, LOST)
    found = judge([unsent, unanswered], {}, 12, 20)
    assert (found.commands, found.lost, found.not_sent) == (2, 1, 1), "what went wrong first was in this time"
    assert judge([unsent, unanswered], {}, 20, 200).commands == 0


def test_silence_is_between_two_answers_of_one_agent() -> None:
    probes = [Probe("a", 0, 1), Probe("b", 0, 1.1), Probe("a", 1, 0), Probe("a", 2, 4), Probe("b", 2, 2.1)]
    assert longest_silence(probes, 0, 10) == 3
    assert longest_silence(probes, 4.5, 10) == 0


@contextmanager
def agents(kind: str, url: str, executions: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "trial.agents", kind, url, "0", str(AGENTS), "100", str(executions)],
        env={**os.environ, "FAIRLEAD_AGENT_TOKEN": "development-agent-token"},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def commands(kind: str, url: str, folder: Path) -> None:
    """Some commands on all agents: each ends well, is begun once, and its lines come once and in order."""
    (folder / "book").touch()
    environment = {"FAIRLEAD_PLATFORM_TOKEN": "development-platform-token"}
    callers = CallerProgram(kind, url, AGENTS, folder, environment, Pace(lines=3, pause=0.05, between=0.1))

    def enough() -> bool:
        caller_log = callers.caller_log()
        return sum(call.outcome == OK for call in caller_log.calls) > 5 * AGENTS and any(
            p.answered for p in caller_log.probes
        )

    try:
        async with asyncio.timeout(120):
            while not enough():
                assert callers.alive()
                await asyncio.sleep(0.1)
    finally:
        await asyncio.to_thread(callers.finish)
    caller_log = callers.caller_log()
    late = [call for call in caller_log.calls if call.outcome == OK]
    assert all(call.lines == 3 for call in late)
    assert caller_log.seconds
    keys = (folder / "book").read_text().split()
    assert sorted(keys) == sorted({call.key for call in caller_log.calls if call.lines})
    assert {call.agent for call in late} == {name(n) for n in range(AGENTS)}


async def test_callers_and_agents_work_with_a_node(tmp_path: Path, valkey: EmbeddedValkey) -> None:
    node = ServeProcess(tmp_path, "node-1", valkey.url)
    try:
        await asyncio.to_thread(node.wait_ready)
        with agents("fairlead", node.link, tmp_path / "book"):
            await commands("fairlead", node.api, tmp_path)
    finally:
        await asyncio.to_thread(node.stop)


async def first_line(api: FairleadApi, http: aiohttp.ClientSession) -> tuple[Call, asyncio.Task[None]]:
    """A command of which the first line was heard, and its caller. Until its agent has a link, the API refuses it."""
    for number in count():
        made = Call(f"key-{number}", name(0), 5, time.time())
        following = asyncio.create_task(api.run(http, made, 60.0))
        while not (made.lines or following.done()):
            await asyncio.sleep(0.05)
        if made.lines:
            return made, following
    raise AssertionError


async def test_a_caller_hears_the_end_of_a_command_whose_agent_never_comes_back(
    tmp_path: Path, valkey: EmbeddedValkey
) -> None:
    node = ServeProcess(tmp_path, "node-1", valkey.url)
    try:
        await asyncio.to_thread(node.wait_ready)
        api = FairleadApi(node.api, "development-platform-token", Limits(deadline=3, queue=3))
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            with agents("fairlead", node.link, tmp_path / "book"):
                made, following = await first_line(api, http)
            await following
    finally:
        await asyncio.to_thread(node.stop)
    assert (made.lines, made.outcome) == (1, "deadline")
    assert judge([made], {}, made.ended, made.ended + 1).failed == {"deadline": 1}


async def test_callers_and_agents_work_with_a_plain_server(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    log = tmp_path / "plain.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "plain_server:app", "--port", "0"],
            env={**os.environ, "REDIS": own_valkey.url}, stdout=sink, stderr=sink,
        )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while not (found := re.search(r"running on http://([\d.:]+)", log.read_text())):
                assert server.poll() is None, log.read_text()
                await asyncio.sleep(0.05)
        with agents("plain", f"ws://{found[1]}", tmp_path / "book"):
            await commands("plain", f"http://{found[1]}", tmp_path)
    finally:
        server.kill()
        server.wait()


def test_a_commit_that_is_not_there_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(HistoryMissing):
        OlderImages("no-such-commit", tmp_path)
    assert not list(tmp_path.iterdir())
