"""The benchmark of the HTTP side runs at a tiny scale; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.commands.http_side import SERVERS

pytestmark = pytest.mark.timeout(120)


def test_the_benchmark_of_the_http_side_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.http_side", "--rounds=1", "--count=20", f"--out={out}"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text()).keys() == set(SERVERS)
    assert "the platform API" in done.stdout
