"""The benchmark of runs runs at a tiny scale and counts what it claims to count; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


def test_the_benchmark_of_runs_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.runs", "--agents=60", "--nodes=3", "--concurrency=20",
         "--turns=1", f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    (run,) = figures["runs"]
    assert (run["agents"], run["nodes"]) == (60, 3)
    assert 0 < run["first"] <= run["seconds"]
    assert run["nodes_us"] > 0 < run["valkey_us"]
    assert figures["echo_before"]["count"] == 100
    assert run["echo"]["count"] > 0


def test_more_agents_than_the_nodes_hold_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.runs", "--agents=20000", "--nodes=2"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "1 nodes hold at most 18000: give more --nodes" in done.stderr
