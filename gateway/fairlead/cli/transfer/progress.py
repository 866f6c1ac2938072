"""How far a transfer is, in one line of stderr that is rewritten: part, bytes, rate, time left.

Used by `cp`, on a terminal alone: into a log go no lines that are there to be overwritten.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from types import TracebackType

PERIOD = 0.1
"""Seconds between two drawings."""
MEMORY = 5.0
"""Seconds over which the rate is taken: it follows a network that changes, and does not flicker."""
BAR = 24
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """Shown from the first octet on, and left standing when the transfer is over."""

    def __init__(self, name: str, total: int | None = None, quiet: bool = False) -> None:
        self.total = total
        self._name = name
        self._done = 0
        self._shown = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._past: deque[tuple[float, int]] = deque([(self._began, 0)])

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._shown and self._drawn:
            self._draw(time.monotonic())
            sys.stderr.write("\n")
            sys.stderr.flush()

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._shown and now - self._drawn >= PERIOD:
            self._past.append((now, self._done))
            while self._past[0][0] < now - MEMORY and len(self._past) > 2:
                self._past.popleft()
            self._draw(now)

    def _draw(self, now: float) -> None:
        self._drawn = now
        since, before = self._past[0]
        rate = (self._done - before) / max(now - since, 1e-3)
        text = line(self._name, self._done, self.total, rate, now - self._began)
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{text[: width - 1]}\x1b[K")
        sys.stderr.flush()


def line(name: str, done: int, total: int | None, rate: float, seconds: float) -> str:
    if total is None:
        return f"{name}  {size(done)}  {size(rate)}/s  {clock(seconds)}"
    part = done / total if total else 1.0
    full = min(BAR, int(part * BAR))
    bar = "#" * full + "-" * (BAR - full)
    left = clock(seconds) if done >= total else f"ETA {clock((total - done) / rate) if rate > 0 else '--:--'}"
    return f"{name}  {part:4.0%} [{bar}] {size(done)} of {size(total)}  {size(rate)}/s  {left}"


def size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
