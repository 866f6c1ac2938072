"""The benchmark of signed and audited commands runs at a tiny scale; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.commands.signatures import VARIANTS

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


def test_every_kind_of_command_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.commands.signatures", "--scale", "smoke", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert figures.keys() == {variant.name for variant in VARIANTS}
    for name, one in figures.items():
        assert min(one["node_us"], one["agent_us"], one["redis_us"]) > 0
        assert (one["signing_us"] > 0) == ("signed" in name)
