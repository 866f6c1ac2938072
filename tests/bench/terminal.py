"""A terminal on an agent, how long an echo takes there, and the memory of processes meanwhile.

Used by the benchmarks that put something beside a terminal. An echo is one octet typed into `shell` through the API and
its coming back: input, agent, pty, results, follower.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time

from fairlead.client import Command

from bench.probe import memory

TIMEOUT = 60.0
PAUSE = 0.03
"""Mean seconds between two echoes: somebody who types fast."""
SHELL = {"argv": ["sh", "-c", "stty raw -echo; echo ready; exec cat"]}
"""The arguments of a `shell` that gives back what is typed."""


def quantiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "count": len(ordered),
        "p50_ms": round(statistics.median(ordered) * 1000, 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 2),
        "max_ms": round(ordered[-1] * 1000, 2),
    }


class Terminal:
    """A `shell` with the arguments SHELL."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._chunks = aiter(command)

    async def ready(self) -> None:
        seen = b""
        while b"ready" not in seen:
            seen += (await anext(self._chunks)).data

    async def echo(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        await self._command.input(b"\x00x")
        while b"x" not in (await anext(self._chunks)).data:
            pass
        return time.perf_counter() - began

    async def echoes(self, seconds: float, most: int) -> list[float]:
        times: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until and len(times) < most:
            async with asyncio.timeout(TIMEOUT):
                times.append(await self.echo())
            await asyncio.sleep(random.uniform(0, 2 * PAUSE))
        return times


class MemoryWatch:
    """The memory of the processes, at its largest since the last look."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.largest: dict[str, int] = {}

    def sample(self) -> dict[str, int]:
        now = {name: memory(pid).rss for name, pid in self._pids.items()}
        self.largest = {name: max(size, self.largest.get(name, 0)) for name, size in now.items()}
        return now

    async def keep_sampling(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(0.1)
