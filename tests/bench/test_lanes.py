"""The benchmark of lanes runs; its claim about a stopped reader holds at any scale: the agent stops, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else

HERE = Path(__file__).resolve().parent
MIB = 1 << 20


def test_the_benchmark_of_lanes_runs_at_a_small_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.agent.lanes", "--mib", "12", "--echoes", "10", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["transfer"]["bytes"] == 12 * MIB
    assert figures["transfer"]["digest_ok"]
    assert figures["echo_alone"]["count"] == figures["echo_stopped"]["count"] == 10
    assert figures["echo_beside"]["count"] > 0
    assert figures["stopped"]["moved_bytes"] == 0
    assert figures["stopped"]["read_mib"] < 10, "the reader has 2 MiB, the gateway keeps 4, the rest is on the way"


def test_a_file_too_small_to_measure_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.agent.lanes", "--mib", "4"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--mib 4 is out of range: give 12 to 1024" in done.stderr
