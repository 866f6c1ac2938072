"""The agent under test as a process: started, given orders on its stdin, restarted, and killed at the end.

Used if the user gave the command that starts the agent. An order is one JSON object on a line; the agent answers
`{"done": NUMBER}` on its stdout when it has carried one out. Whatever else it prints is kept for the report.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import Sequence

from fairlead.errors import ConfigError
from fairlead.mock.script import Raw

TAIL = 20
"""The last lines that the agent has printed, kept for the report."""
LINE_LIMIT = 1 << 20


class AgentProcess:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._number = 0
        self._done: set[int] = set()
        self._answered = asyncio.Condition()
        self.printed: deque[str] = deque(maxlen=TAIL)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start it unless it is running. Raises ConfigError when there is no such program."""
        if self.running:
            return
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=LINE_LIMIT, start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            raise ConfigError(f"cannot start the agent {self._command[0]!r}: {e.strerror or e}") from e
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(process.stdout, orders=True)),
            asyncio.create_task(self._read(process.stderr, orders=False)),
        ]

    async def order(self, order: str, **more: object) -> int:
        """Give one order; returns its number."""
        self._number += 1
        line = json.dumps({"order": order, "number": self._number, **more}).encode() + b"\n"
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # the process has ended, which the link reports
                self._process.stdin.write(line)
                await self._process.stdin.drain()
        return self._number

    async def write(self, message: Raw) -> int:
        return await self.order("write", id=message["id"], kind=message["kind"], payload=message.get("payload", ""))

    async def end(self, message: Raw) -> int:
        return await self.order("end", id=message["id"], payload=message.get("payload", ""))

    async def emit(self, message: Raw) -> int:
        more = {"type": message["type"], "qos": message.get("qos", 1), "payload": message.get("payload", "")}
        return await self.order("event", **more)

    async def take(self, command: str) -> int:
        return await self.order("take", id=command)

    async def done(self, number: int, timeout: float) -> bool:
        """Wait until order `number` is carried out; False when that takes too long."""
        try:
            async with asyncio.timeout(timeout), self._answered:
                await self._answered.wait_for(lambda: number in self._done)
        except TimeoutError:
            return False
        return True

    async def ended(self, timeout: float) -> bool:
        """Wait until the process has ended by itself; False when that takes too long."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def kill(self) -> None:
        """Kill it, and everything that it started."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read(self, stream: asyncio.StreamReader, orders: bool) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # a line that is too long
            if not line:
                return
            number = _done(line) if orders else None
            if number is None:
                self.printed.append(line.decode(errors="replace").rstrip())
                continue
            async with self._answered:
                self._done.add(number)
                self._answered.notify_all()


def _done(line: bytes) -> int | None:
    """The number of the order that a line reports as carried out."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    number = value.get("done") if isinstance(value, dict) else None
    return number if isinstance(number, int) else None
