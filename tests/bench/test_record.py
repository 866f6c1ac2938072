"""The record runs at a tiny scale, goes on where it was broken, and says on its page what is behind a peer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bench.links.plain import Pinger
from bench.record.comparison import Behind, behind
from bench.record.page import BEGIN, END, deficits, provenance
from bench.record.runs import RUNS
from bench.record.runs import commit as current_commit

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


def record(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "bench.record.run", "--scale", "smoke", "--results", str(tmp_path / "results"),
         "--docs", str(tmp_path), *arguments],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_the_record_runs_at_a_tiny_scale_and_goes_on_where_it_was_broken(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Before\n{BEGIN}\nstale figures\n{END}\nafter\n")
    done = record(tmp_path, "--only", "market", "hosts", "handlers")
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "stale figures" not in text
    assert "### Market data" in text
    assert "One command on 5 hosts" in text
    assert "**Not at full scale**: handlers, hosts, market." in text
    assert "Not run: links, workers, hold, nodes, tls." in text
    assert "<svg" in (tmp_path / "benchmarks" / "market.svg").read_text()

    kept = json.loads((tmp_path / "results" / "hosts.json").read_text())
    assert {"fairlead, serial", "fairlead, concurrent"} <= kept["figures"]["ways"].keys()
    (tmp_path / "results" / "handlers.json").unlink()
    again = record(tmp_path, "--only", "market", "hosts", "handlers", "--resume")
    assert again.returncode == 0, again.stderr
    assert "== market: there already" in again.stderr
    assert "== handlers: handlers" in again.stderr


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "workers.json").write_text("{}")
    (tmp_path / "benchmarks.md").write_text("mine")
    done = record(tmp_path, "--write")
    assert done.returncode != 0
    assert "put them where the tables shall stand" in done.stderr
    assert (tmp_path / "benchmarks.md").read_text() == "mine"


@pytest.mark.parametrize(("scale", "commit"), [("smoke", "0000000"), ("full", "")])
def test_results_of_another_commit_or_scale_are_not_resumed(tmp_path: Path, scale: str, commit: str) -> None:
    results = tmp_path / "results"
    results.mkdir()
    kept = json.dumps({"scale": scale, "commit": commit or current_commit(), "figures": {}})
    (results / "hosts.json").write_text(kept)
    done = record(tmp_path, "--only", "hosts", "--resume")
    assert done.returncode != 0
    assert f"is of commit {commit or current_commit()} at scale {scale}: expected" in done.stderr
    assert (results / "hosts.json").read_text() == kept


def test_the_record_fits_into_an_hour() -> None:
    assert sum(run.minutes for run in RUNS) <= 60


def servers(**figures: float) -> dict[str, dict[str, float]]:
    keys = ("bytes", "accept_us", "gc_ms", "cpu_us", "seconds", "us")
    return {name: {**dict.fromkeys(keys, figure), "load": 0.5} for name, figure in figures.items()}


def links(**figures: float) -> dict[str, dict[str, Any]]:
    one = servers(**figures)
    return {"links": {"figures": {"plain": one, "rounds": {"100": one}, "echo": {"1": one}}}}


def test_a_peer_that_needs_less_is_listed_with_its_reason() -> None:
    found = behind(links(fairlead=9.0, epoll=4.0, ws=3.0, aiohttp=3.5, autobahn=20.0))
    assert {one.peer for one in found} == {"ws on Node.js", "aiohttp"}
    assert len(found) == 12  # two peers, six figures each
    assert found[0].what == "bytes of an idle connection"
    assert (found[0].theirs, found[0].ours) == ("3.000 B", "4.000 B")
    assert {one.reason for one in found if one.peer == "aiohttp"} == {"not known yet"}


def test_a_round_that_lasted_as_long_as_its_clients_needed_is_not_compared() -> None:
    results = links(fairlead=9.0, ws=3.0)
    results["links"]["figures"]["rounds"]["100"]["fairlead"]["load"] = 0.97
    found = [one.what for one in behind(results) if one.what.startswith("connect and timestamp")]
    assert found == ["connect and timestamp, 100 clients, CPU"]


def test_neither_a_floor_nor_a_difference_within_noise_is_listed() -> None:
    assert behind(links(fairlead=4.0, epoll=4.0, floor=1.0, uvloop=2.0, ws=3.95)) == []


def test_what_is_compared_is_the_default_carrier_and_not_the_best_of_ours() -> None:
    assert behind(links(fairlead=2.0, epoll=4.0, ws=3.0))[0].ours == "4.000 B"
    assert behind(links(fairlead=4.0, epoll=2.0, ws=3.0)) == []
    assert "nothing in these runs" in deficits([])


def test_aims_are_listed_like_peers() -> None:
    states = [
        {"state": "all workers new", "links": [51, 49], "max_to_mean": 1.02, "us_per_link": 400.0},
        {"state": "one worker restarted", "links": [60, 40], "max_to_mean": 1.2, "us_per_link": 300.0},
    ]
    models = {
        "sequential": {"min": 3.0, "median": 3.1}, "processes": {"min": 1.6, "median": 1.75},
        "agent, process": {"min": 1.6, "median": 1.7},
    }  # fmt: skip
    found = behind({
        "workers": {"figures": {"workers": 2, "states": states}},
        "handlers": {"figures": {"cores": 2, "tasks": 10, "seconds": {"fib": models}}},
        "hosts": {"figures": {"hosts": 2, "ways": {
            "fairlead, serial": {"seconds": 1.0}, "asyncssh, serial": {"seconds": 2.0},
            "fairlead, concurrent": {"seconds": 1.0}, "asyncssh, concurrent": {"seconds": 0.5},
        }}},
    })  # fmt: skip
    assert [one.what for one in found] == [
        "links over 2 workers, one worker restarted", "one command on 2 hosts, concurrent",
        "ten CPU-bound handlers on one agent",
    ]  # fmt: skip
    assert "1.75 s" in found[-1].reason
    text = deficits([Behind("what", "peer", "1", "2", "reason")])
    assert "| what | peer | 1 | 2 | reason |" in text


def test_a_peer_with_less_latency_is_listed_although_it_needs_more_cpu() -> None:
    own = {"us": 1.0, "p50_ms": 4.0, "p99_ms": 5.0}
    peer = {"us": 9.0, "p50_ms": 1.0, "p99_ms": 6.0}
    cell = {"stocks": 1, "clients": 2, "binary": False, "servers": {"epoll": own, "ws": peer}}
    (found,) = behind({"market": {"figures": {"cells": [cell]}}})
    assert (found.what, found.theirs) == ("market data, 1 stocks to 2 clients, text, latency p50", "1.000 ms")


def test_market_data_is_compared_by_turns_that_do_not_overlap() -> None:
    def server(least: float, median: float, most: float) -> dict[str, float]:
        return {"us": 1.0, "p50_ms": median, "p50_ms_low": least, "p50_ms_high": most, "p99_ms": 1.0}

    servers = {"epoll": server(3.0, 4.0, 5.0), "ws": server(1.0, 2.0, 3.5), "autobahn": server(1.0, 2.0, 2.5)}
    cell = {"stocks": 1, "clients": 2, "binary": False, "servers": servers}
    assert [one.peer for one in behind({"market": {"figures": {"cells": [cell]}}})] == ["autobahn, asyncio"]


def test_the_page_says_when_results_are_of_several_commits() -> None:
    state = {"cores": 2, "cpu": "x", "gib": 1, "kernel": "6", "python": "3", "load": 0.0}
    one = {"machine": state, "figures": [], "scale": "full", "command": "c", "when": "w", "seconds": 1, "load_after": 0}
    assert "**Not of one commit**" not in provenance({"hosts": one | {"commit": "a"}, "nodes": one | {"commit": "a"}})
    assert "**Not of one commit**" in provenance({"hosts": one | {"commit": "a"}, "nodes": one | {"commit": "b"}})


def test_an_echo_of_something_else_ends_the_benchmark() -> None:
    async def echoed() -> None:
        pinger = Pinger(b"sent", 1)
        pinger.on_message(cast("Any", None), b"other")
        async with asyncio.timeout(5):
            await pinger.done

    with pytest.raises(ValueError, match="echoed b'other'"):
        asyncio.run(echoed())
