"""The benchmark of credentials runs at a tiny scale; its figures are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.links.credentials import KINDS

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


def test_every_kind_of_credential_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-I", "-m", "bench.links.credentials", "--agents", "5", "--turns", "1", "--out", str(out)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["found"]
    assert found.keys() == set(KINDS)
    assert all(one["accept_us"] > 0 for one in found.values())
