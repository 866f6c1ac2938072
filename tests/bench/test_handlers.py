"""The benchmark of handlers runs at a tiny scale; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # of processes that start and stop, on a machine that may do much else


def test_the_benchmark_of_handlers_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.agent.handlers", "--rounds=1", "--fib=5", "--sleep=0.01", f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seconds = json.loads(out.read_text())["seconds"]
    plain = {"sequential", "asyncio", "threads", "processes"}
    assert seconds["fib"].keys() - plain == {
        "agent, process", "agent, process, first", "agent, thread", "agent, thread, first",
    }  # fmt: skip
    assert seconds["sleep"].keys() >= plain
