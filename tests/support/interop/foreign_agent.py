"""The agent in another language, agent.mjs, as a process that prints what it does."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

TIMEOUT = 20.0


class ForeignAgent:
    """agent.mjs as a process. `lines` has what it prints on its stdout."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()

    def all(self, at: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["at"] == at]

    async def wait_for_line(self, at: str, count: int = 1) -> dict[str, Any]:
        """Wait until it has printed `count` lines with this `at`; returns the last of them."""
        async with asyncio.timeout(TIMEOUT), self._news:
            await self._news.wait_for(lambda: len(self.all(at)) >= count)
        return self.all(at)[count - 1]

    async def order(self, order: str, **more: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"order": order, **more}).encode() + b"\n")
        await self.process.stdin.drain()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), TIMEOUT)

    async def aclose(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._reader


class StartForeign(Protocol):
    def __call__(self, links: Sequence[str], agent: str, *flags: str) -> Awaitable[ForeignAgent]: ...
