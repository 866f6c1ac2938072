"""The benchmark of traces runs at a tiny scale and counts what it claims to count; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(240)
def test_the_benchmark_of_traces_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.tracing", "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found["figures"]) == ["no collector", "the same again", "0 %", "1 %", "100 %"]
    # A warm-up and one round of 50 are all kept by the last node; the third keeps some of its hundred, or none.
    assert 100 <= found["traces"] < 150
