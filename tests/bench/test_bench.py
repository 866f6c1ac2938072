"""The benchmark runs at a tiny scale and counts what it claims to count; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.c_compiler import needs

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else

HERE = Path(__file__).resolve().parent


@needs("round_clients")
def test_the_benchmark_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.links.run", "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert "50 agents registered, 50 known to Valkey" in done.stderr
    assert [c["count"] for c in figures["node"]["commands"]] == [20, 100]
    assert len(figures["node"]["cycles"]) == 2
    assert {"fairlead", "sansio", "aiohttp"} <= figures["plain"].keys()
    assert figures["rounds"].keys() == {"10", "30"}
    assert figures["rounds"]["10"].keys() == figures["plain"].keys() == figures["echo"]["1"].keys()
    assert {"1", "100", "1000"} == figures["echo"].keys()


def test_the_benchmark_of_several_nodes_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.nodes", "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert [run["count"] for run in figures["commands"]["two nodes"]] == [30, 100]
    assert [idle["agents"] for idle in figures["idle"]] == [20, 40]
    assert (figures["spread"]["workers"], figures["spread"]["links"]) == (2, 60)


def test_the_benchmark_of_idle_agents_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.hold", "--agents=60", "--watched=1", "--commands=100", f"--out={out}",
         f"--plot={tmp_path / 'plot.svg'}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert (figures["swarm"]["linked"], figures["swarm"]["ok"], sum(figures["links"])) == (60, True, 60)
    assert figures["missing_in_index"] == 0
    assert figures["swarm"]["commands"]["answered"] == sum(run["count"] for run in figures["commands"])
    assert (figures["growth"][0]["agents"], figures["growth"][-1]["agents"]) == (0, 60)
    assert "CPU seconds since the first agent" in (tmp_path / "plot.svg").read_text()


def test_agents_of_killed_workers_come_back_in_the_benchmark_of_idle_agents(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    few = ["--agents=80", "--gateways=2", "--killed=50", "--watched=1", "--commands=100"]
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.hold", *few, f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert (figures["agents"], figures["workers"], sum(figures["links"]), figures["missing_in_index"]) == (80, 4, 80, 0)
    assert figures["swarm"]["lost"] >= 20


def test_the_benchmark_of_storms_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    few = ["--agents=60", "--crowd=60", "--workers=2", "--processes=1"]
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.storm", *few, f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["now"]
    assert figures["return"]["back"]["count"] == 60
    assert min(figures["return"]["storm"][2], figures["return"]["calm"][2]) > 20
    assert {one["linked"] >= 54 for one in figures["overload"].values()} == {True}


def test_a_node_holds_after_some_rounds_what_it_held_before(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.endurance", "--accepts=600", "--crowd=20", "--strays=80", f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["commands"] == 30
    assert [one["accepts"] for one in figures["samples"]] == [300, 400, 500, 600]
    assert len({one["descriptors"] for one in figures["samples"]}) == 1


def test_the_benchmark_of_deadlines_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.deadlines", "--commands=150", "--nodes=2", f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(out.read_text())
    assert (figures["commands"], figures["nodes"]) == (150, 2)
    assert 1.0 <= figures["ended"]["first"] <= figures["ended"]["last"] <= figures["settled"]
    assert figures["nodes_us"] > 0 < figures["valkey_us"]


def test_an_agent_moves_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.moving.moves", "--moves=1", "--rate=20", "--quiet=1", f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["twice"] == 0
    assert {phase: f["not_ok"] for phase, f in figures["phases"].items()} == {"no move": 0, "move 1": 0}
    assert all(f["commands"] for f in figures["phases"].values())


def test_the_simulators_cost_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.moving.simulator", "--trace", "day", "--agents", "30000", "--minutes=1",
         f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert [run["policy"] for run in figures] == ["fairlead", "hpa", "keda", "agones"]
    assert all(run["seconds"] == 60 and run["most_pods"] >= 2 and run["cpu_per_day_s"] > 0 for run in figures)


@pytest.mark.long
def test_two_nodes_that_join_get_their_share_at_a_tiny_scale(tmp_path: Path) -> None:
    """The operator waits for half a minute before links move, and load balancers for ten seconds."""
    out = tmp_path / "figures.json"
    load = ("--agents=200", "--rate=10", "--probe-rate=2", "--quiet=1", "--period=2")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.moving.rebalance", *load, f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert (figures["agents"], sum(figures["links"]), len(figures["links"])) == (200, 200, 4)
    assert (figures["lost"], figures["twice"]) == (0, 0)
    assert figures["moves"] > 0 < figures["probes"] < figures["commands"]


def test_the_benchmark_of_sizes_runs_at_a_tiny_scale() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.store_sizes", "--agents=40", "--commands=100"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| a")]
    redis = {what: int(size.replace(",", "")) for what, size, _ in rows}
    assert len(redis) == 11
    assert redis["an open command, payload of 65,536"] > 65_536
    assert redis["a finished command, payload of 65,536, output of 0"] < 10_000  # its payload is gone
    assert redis["a finished command, payload of 100, output of 65,536"] > 65_536
    assert redis["an event of 1,000"] > 900
