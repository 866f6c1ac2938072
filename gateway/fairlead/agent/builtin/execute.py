"""`exec`: run a program by its argument list, no shell, and stream what it does.

Output is read only as fast as the gateway grants credit, so a fast program waits at its pipe. When the command is
cancelled or its deadline passes, the program and everything it started is killed. A program that left children
holding its output open ends a moment after it exits; it is not waited for what they print.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from pathlib import Path

from fairlead.agent.command import Command, CommandError
from fairlead.wire.messages import CHUNK_LIMIT

LINGER = 1.0
"""Seconds after the exit for output that is still in the pipes."""
GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL; the protocol gives 10 s for all of it."""


class _Process(SubprocessStreamProtocol):
    """Knows the exit itself: asyncio's own wait() also waits for the pipes, which grandchildren may hold."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(CHUNK_LIMIT, loop)
        self.exited: asyncio.Future[None] = loop.create_future()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)
        super().process_exited()


async def execute(
    command: Command,
    argv: list[str],
    env: dict[str, str] = {},  # noqa: B006  # read into a schema, never changed
    cwd: str | None = None,
    stdin: bool = False,
) -> dict[str, int]:
    """{"exit_code": n}, or {"signal": n} when it was killed. Raises CommandError `exec_failed`."""
    if not argv:
        raise CommandError("invalid_arguments", "argv is empty: it needs at least the program")
    loop = asyncio.get_running_loop()
    try:
        transport, process = await loop.subprocess_exec(
            _Process,
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, **env},
            start_new_session=True,
        )
    except OSError as e:
        what = e.filename or argv[0]
        raise CommandError("exec_failed", f"cannot run {what}: {e.strerror}", errno=e.errno or 0) from e
    except ValueError as e:
        raise CommandError("exec_failed", f"cannot run {argv[0]!r}: {e}") from e
    pumps = [
        asyncio.create_task(_pump(command, "stdout", process.stdout)),
        asyncio.create_task(_pump(command, "stderr", process.stderr)),
    ]
    feeder = asyncio.create_task(_feed(command, process)) if stdin else None
    try:
        await process.exited
        await asyncio.wait(pumps, timeout=LINGER)
        for pump in pumps:
            if pump.done():
                pump.result()
    finally:
        try:
            if not process.exited.done():
                await _kill(transport.get_pid(), process)
        finally:
            for task in (*pumps, feeder):
                if task is not None:
                    task.cancel()
            transport.close()
    code = transport.get_returncode()
    assert code is not None
    return {"exit_code": code} if code >= 0 else {"signal": -code}


async def _pump(command: Command, kind: str, stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while data := await stream.read(CHUNK_LIMIT):
        await command.write(kind, data)


async def _feed(command: Command, process: _Process) -> None:
    """Input to the program; a program that does not want it any more is no error."""
    stdin = process.stdin
    assert stdin is not None
    try:
        async for data in command.stdin:
            stdin.write(data)
            await stdin.drain()
        stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass


async def _kill(pid: int, process: _Process) -> None:
    """End the program and all that came of it: asked first, then killed."""
    family = _descendants(pid)
    _signal_group(pid, signal.SIGTERM)
    await asyncio.wait({process.exited}, timeout=GRACE)
    family |= _descendants(pid)
    _signal_group(pid, signal.SIGKILL)
    for member in family:
        try:
            os.kill(member, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    await asyncio.wait({process.exited}, timeout=GRACE)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _descendants(pid: int) -> set[int]:
    """Children of children, also those that left the group; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name) state ppid …; the name may hold anything, so read behind its last parenthesis.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found
