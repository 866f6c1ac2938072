"""A child process of the demo: its log, its death, its end.

Used by `demo` alone. Each child is in a session of its own, so that Ctrl-C at the terminal reaches the demo
and not all of them at once: the order of the end is the demo's. Its output goes to a file, because three
agents and a gateway in one terminal can be read by nobody.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_LINES = 12
TAIL_BYTES = 8 << 10
KILL_TIMEOUT = 5.0
"""Seconds: the kernel ends a killed process at once, unless its disk hangs."""


class Child:
    """One process, started and ended once."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> None:
        """Return when it has ended, of itself or not."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self, timeout: float) -> bool:
        """SIGTERM, and SIGKILL after `timeout` seconds. False when it had to be killed."""
        if self._process is None or self._process.returncode is not None:
            return True
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), timeout)
            return True
        except TimeoutError:
            self.kill()
            await asyncio.wait_for(self._process.wait(), KILL_TIMEOUT)
            return False

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def epitaph(self) -> str:
        """How it ended, and the last lines of its log."""
        code = self._process.returncode if self._process is not None else None
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return f"{self.name} ended {how}; the last lines of {self.log}:\n{tail(self.log)}"


def tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError as e:
        return f"    (it cannot be read: {e})"
    lines = text.splitlines()[-TAIL_LINES:]
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"
