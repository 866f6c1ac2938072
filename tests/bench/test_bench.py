"""The benchmark runs, and counts what it claims to count: at a tiny scale, no figure is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_the_whole_benchmark_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert "50 agents registered, 50 known to Valkey" in done.stderr
    assert [c["count"] for c in figures["node"]["commands"]] == [20, 100]
    assert len(figures["node"]["cycles"]) == 2
    assert {"fairlead", "sansio", "aiohttp"} <= figures["plain"].keys()
    assert {"1", "100", "1000"} == figures["echo"].keys()
