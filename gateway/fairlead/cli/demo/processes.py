"""One process of the demo: its log, its process id in a file, how it ended, and how it is stopped.

Used by `demo`; `restarts` decides when a process is started again. Each has a session of its own, so that Ctrl-C at the
terminal reaches only the demo, which stops them in order. Their output goes to files, because nobody can follow three
agents and two gateways in one terminal.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fairlead.cli.child_processes import describe_exit
from fairlead.store.embedded_valkey.server import EmbeddedValkey

TAIL_LINES = 12
TAIL_BYTES = 8 << 10
KILL_TIMEOUT = 5.0
"""Seconds to wait for a killed process: the kernel ends it at once, unless it waits for a disk that hangs."""


class Process(Protocol):
    """What the demo uses of each of its processes."""

    name: str
    log: Path

    async def start(self) -> None:
        """Start the process, also again after it has ended. Raises FairleadError or OSError."""

    @property
    def pid(self) -> int:
        """The id of the newest process."""

    @property
    def code(self) -> int | None:
        """The exit code of the newest process, negative for a signal; None while it runs."""

    async def ended(self) -> None:
        """Return when the process has ended, for whatever reason."""


class ChildProcess:
    """A program with a log file. While it runs, its process id is in a file next to the log (NAME.log, NAME.pid)."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        # A restarted process appends to the log, because the end of the previous process's log is worth reading.
        with self.log.open("wb" if self._process is None else "ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        write_pid(self.log, self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ended(self) -> None:
        if self._process is not None:
            await self._process.wait()
            remove_pid(self.log)

    async def stop(self, timeout: float) -> bool:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. False if it had to be killed."""
        if self._process is None:
            return True
        ended_in_time = True
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), timeout)
            except TimeoutError:
                ended_in_time = False
                self.kill()
                await asyncio.wait_for(self._process.wait(), KILL_TIMEOUT)
        remove_pid(self.log)
        return ended_in_time

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class ValkeyProcess:
    """The embedded Valkey as a process of the demo. Its process id is in FOLDER.pid, next to its folder."""

    def __init__(self, server: EmbeddedValkey) -> None:
        self.name = "valkey"
        self.log = server.log_path
        self.server = server

    async def start(self) -> None:
        await self.server.start()
        write_pid(self.server.folder, self.pid)

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def code(self) -> int | None:
        return self.server.code

    async def ended(self) -> None:
        await self.server.ended()
        remove_pid(self.server.folder)

    async def stop(self) -> None:
        await self.server.stop()
        if (
            self.code is not None
        ):  # otherwise it was not started, and the folder may belong to the Valkey of another demo
            remove_pid(self.server.folder)


def describe_end(process: Process) -> str:
    """How the process ended, and the last lines of its log."""
    return f"{process.name} ended {describe_exit(process.code)}; the last lines of {process.log}:\n{tail(process.log)}"


def tail(log: Path) -> str:
    """The last lines of a log, indented."""
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError as e:
        return f"    (cannot read it: {e})"
    lines = text.splitlines()[-TAIL_LINES:]
    return "\n".join(f"    {line}" for line in lines) or "    (empty)"


def write_pid(beside: Path, pid: int) -> None:
    beside.with_suffix(".pid").write_text(f"{pid}\n")


def remove_pid(beside: Path) -> None:
    beside.with_suffix(".pid").unlink(missing_ok=True)
