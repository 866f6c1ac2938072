"""The latency of each link, and the slowest links, in the API, in `fairlead why` and in `fairlead top`."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import termios
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.telemetry.command_timing import FEW, STAGES, CommandStats, CommandTiming
from fairlead.telemetry.decaying_histogram import LEAST, SIZES, new_histogram, observe, quantile
from fairlead.telemetry.link_opening import pack_opening, unpack_opening
from fairlead.wire.messages import Ack, Chunk, Cmd, End

from support.telemetry.node import MakeNode, Node
from support.telemetry.platform_api import PlatformOf
from support.telemetry.scripted_agent import DialLink

pytestmark = pytest.mark.timeout(240)  # of processes that start and stop, on a machine that may do much else


def fairlead(node: Node, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *args, "--api", node.api], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def eventually(texts: Iterable[str], node: Node, *args: str) -> str:
    """What `fairlead` writes, once it has all of `texts` in it: a busy node may not have answered in time."""
    async with asyncio.timeout(60):
        while True:
            output = await asyncio.to_thread(fairlead, node, *args)
            if all(text in output for text in texts):
                return output
            await asyncio.sleep(0.2)


@given(st.lists(st.floats(LEAST, 60.0), min_size=1, max_size=200), st.sampled_from((0.5, 0.9, 0.99, 1.0)))
def test_a_quantile_is_right_to_within_a_tenth(durations: list[float], share: float) -> None:
    counts = new_histogram()
    for seconds in durations:
        observe(counts, seconds)
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    found = quantile(counts, share)
    assert found is not None
    assert exact / 1.1 <= found <= exact * 1.1


def test_histograms_of_a_million_links_stay_small() -> None:
    """Bytes that telemetry adds to a link: idle ones have slots alone, and one window after their first heartbeat."""

    def size(make: Callable[[], object]) -> float:
        make()
        gc.collect()
        tracemalloc.start()
        kept = [make() for _ in range(2_000)]
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used / len(kept) - 8  # less its place in the list

    def with_commands() -> CommandStats:
        tally = CommandStats()
        tally.add((0.001, 0.002, 0.003, 0.004, 0.005), failed=False)
        return tally

    figures = {
        "round trips": size(new_histogram),
        "commands": size(with_commands),
        "opening, with traces": size(lambda: pack_opening([10**18 + i for i in range(6)])),
    }
    assert figures["round trips"] <= 150, figures
    assert figures["commands"] <= 160, figures
    assert figures["opening, with traces"] <= 80, figures


seconds = st.one_of(st.none(), st.floats(0.0, 200.0))


@given(st.lists(st.tuples(*[seconds] * len(STAGES)), max_size=3 * FEW))
def test_the_durations_of_few_commands_make_the_histograms_of_many(stages: list[tuple[float | None, ...]]) -> None:
    tally = CommandStats()
    for one in stages:
        tally.add(one, failed=False)
    for stage in range(len(STAGES)):
        expected = new_histogram()
        for one in stages:
            if (found := one[stage]) is not None:
                observe(expected, found)
        assert (tally.histogram(stage) or new_histogram()) == expected
    assert tally.commands == len(stages)


def test_a_histogram_is_small_and_forgets() -> None:
    counts = new_histogram()
    assert sys.getsizeof(counts) <= 160
    assert quantile(counts, 0.5) is None
    for _ in range(10_000):
        observe(counts, 0.01)
    for _ in range(600):
        observe(counts, 2.0)
    found = quantile(counts, 0.5)
    assert found == pytest.approx(2.0, rel=0.1), "what came last outweighs the thousands before it"
    assert len(counts) == SIZES
    observe(counts, 0.0)
    observe(counts, 1e9)


def test_a_clock_set_back_gives_no_negative_times() -> None:
    begin = 10**18
    timing = CommandTiming(0, begin)
    timing.written, timing.ended, timing.stored = begin - 10**9, begin + 10**9, begin
    assert timing.stages() == (0.0, None, None, 2.0, 0.0)
    back = unpack_opening(pack_opening([begin, begin + 2000, begin - 5, begin + 10**18, begin, begin]))
    assert back[:3] == [begin, begin + 2000, begin]


async def test_link_stats_have_the_latencies_of_a_session(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink
) -> None:
    asked = make_node("asked")
    holder = make_node("holder")
    agent = await dial(holder, "slow-1", conn=3)
    platform = platform_of(asked)
    await platform.online("slow-1")
    fresh = await platform.get("/v1/agents/slow-1/link")
    assert (fresh["rtt"], fresh["round_trips"], fresh["latency"], fresh["ended"]) == (None, None, {}, 0)
    assert fresh["reconnects"] == 2

    await agent.trips(*[0.02] * 98, 0.4, 0.5)
    for failed in (False, True):
        await platform.post("slow-1", "work")
        command = await agent.expect(Cmd)
        await agent.send(Ack(id=command.id))
        await asyncio.sleep(0.1)  # the agent works
        await agent.send(Chunk(id=command.id, n=0, kind="stdout", payload=b"x"))
        await asyncio.sleep(0.1)
        await agent.send(End(id=command.id, total=1, state="error" if failed else "ok"))
    async with asyncio.timeout(60):
        while (link := await platform.get("/v1/agents/slow-1/link"))["ended"] < 2:
            await asyncio.sleep(0.05)
    assert link["rtt"] == pytest.approx(0.5)
    assert link["round_trips"]["p50"] == pytest.approx(0.02, rel=0.1)
    assert link["round_trips"]["p99"] == pytest.approx(0.4, rel=0.1)
    assert (link["ended"], link["failed"], link["node"]) == (2, 1, "holder")
    spent = {stage: spread["p50"] for stage, spread in link["latency"].items()}
    assert list(spent) == ["deliver", "ack", "first_byte", "run", "store"]
    assert 0.09 < spent["first_byte"] < spent["run"]
    assert spent["run"] > 0.18

    output = await eventually(["round trip 500.0 ms"], asked, "why", "slow-1")
    assert re.search(r"round trips p50 [12]\d\.\d ms, p99 [34]\d\d\.\d ms", output)
    assert "2 commands ended on this link, 1 of them failed" in output
    assert "first_byte" in output

    # The next link begins anew, and says how the one before ended.
    await agent.close()
    async with asyncio.timeout(60):  # until its end is noted: the next link would overtake it
        while (await platform.get("/v1/agents/slow-1"))["state"] == "online":
            await asyncio.sleep(0.05)
    await (await dial(asked, "slow-1", conn=4)).trips(0.001)
    again = await platform.get("/v1/agents/slow-1/link")
    assert (again["reconnects"], again["ended"], again["round_trips"]["p99"] < 0.01) == (3, 0, True)
    assert again["last_close"].startswith("1000"), again


async def test_top_ranks_the_links_of_all_nodes(make_node: MakeNode, platform_of: PlatformOf, dial: DialLink) -> None:
    nodes = [make_node("top-a"), make_node("top-b")]
    trips = {f"ranked-{n}": 0.002 * 2**n for n in range(6)}
    for n, (name, trip) in enumerate(random.Random(7).sample(sorted(trips.items()), len(trips))):
        await (await dial(nodes[n % 2], name, conn=1 + n)).trips(trip)
    slowest_first = sorted(trips, key=lambda name: -trips[name])
    for node in nodes:
        found = await platform_of(node).ranked("?by=rtt&limit=4")
        assert [one["agent"] for one in found["links"]] == slowest_first[:4]
    assert {one["node"] for one in found["links"]} == {"top-a", "top-b"}
    by_attempts = await platform_of(nodes[0]).ranked("?by=reconnects")
    assert [one["reconnects"] for one in by_attempts["links"]][:6] == [5, 4, 3, 2, 1, 0]
    for wrong in ("by=beauty", "limit=0", "limit=101"):
        assert (await platform_of(nodes[0]).http.get(f"/v1/links?{wrong}")).status_code == 422

    table = (await eventually(trips, nodes[0], "top")).splitlines()
    assert table[0].split()[:6] == ["AGENT", "NODE", "AGE", "RTT", "P50", "P99"]
    assert [row.split()[0] for row in table[1:7]] == slowest_first
    ranking = json.loads(await eventually(['"missing": []'], nodes[1], "top", "-n", "1", "-o", "json"))
    one = [(row["agent"], row["node"]) for row in ranking["links"]]
    assert one == [(slowest_first[0], found["links"][0]["node"])]


async def test_top_on_a_terminal_stays_in_place_and_takes_keys(make_node: MakeNode, dial: DialLink) -> None:
    node = make_node("shown")
    await (await dial(node, "shown-1", conn=3)).trips(0.02)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (30, 200))
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "top", "--interval", "1", "--api", node.api],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()
    os.set_blocking(ours, False)

    async def until(text: bytes, after: int = 0) -> int:
        async with asyncio.timeout(60):
            while (at := shown.find(text, after)) < 0:
                try:
                    shown.extend(os.read(ours, 1 << 16))
                except BlockingIOError:
                    await asyncio.sleep(0.05)
        return at

    try:
        at = await until(b"shown-1", await until(b"[rtt]"))
        os.write(ours, b"9")
        at = await until(b"shown-1", await until(b"[reconnects]", at))
        assert shown.count(b"\x1b[H\x1b[2J") >= 2
        os.write(ours, b"q")
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


async def test_a_node_that_does_not_answer_is_named(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink
) -> None:
    well, ill = make_node("well"), make_node("ill")
    await (await dial(well, "well-1")).trips(0.01)
    await platform_of(well).online("well-1")
    async with asyncio.timeout(60):  # until they know of each other
        while "ill" not in _nodes(await platform_of(well).get("/v1/links")):
            await dial(ill, "ill-1")
            await asyncio.sleep(0.2)
    os.kill(ill.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            while not (found := await platform_of(well).get("/v1/links?by=open"))["links"]:
                await asyncio.sleep(0.2)
        assert found["missing"] == ["ill"]
        assert [one["agent"] for one in found["links"]] == ["well-1"]
    finally:
        os.kill(ill.pid, signal.SIGCONT)


def _nodes(ranking: dict[str, Any]) -> set[str]:
    return {one["node"] for one in ranking["links"]}
