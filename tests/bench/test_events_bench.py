"""The benchmarks of events and of contents run at a tiny scale and count what they claim to count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # of servers that start and stop, on a machine that may do much else


def figures_of(out: Path, module: str, *flags: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-I", "-m", f"bench.commands.{module}", *flags, f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(out.read_text())
    return found


def test_events_are_stored_and_counted(tmp_path: Path) -> None:
    (found,) = figures_of(tmp_path / "figures.json", "events", "--rates=50", "--seconds=3")
    assert 0 < found["stored"] <= found["offered"]
    assert found["node_us"] > 0 < found["valkey_us"]


def test_a_content_goes_through_redis_once_and_a_payload_with_each_command(tmp_path: Path) -> None:
    found = figures_of(tmp_path / "figures.json", "contents", "--agents=60", "--paid=10")
    plain, content, payload = (one["received"] for one in found)
    assert [one["what"] for one in found] == ["no content", "content", "payload"]
    assert content - plain < 64 << 10 < payload, found
