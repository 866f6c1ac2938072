"""A wall clock that is wrong, for Python processes."""

from __future__ import annotations

from pathlib import Path

SHIFT = """
import os, time
_shift = float(os.environ["CLOCK_SHIFT"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + int(_shift * 1e9)
"""


def shifted_clock(folder: Path, seconds: int) -> dict[str, str]:
    """The environment of a Python process whose wall clock is so many seconds ahead, or behind below zero."""
    clock = folder / "clock"
    clock.mkdir(exist_ok=True)
    (clock / "sitecustomize.py").write_text(SHIFT)
    return {"PYTHONPATH": str(clock), "CLOCK_SHIFT": str(seconds)}
