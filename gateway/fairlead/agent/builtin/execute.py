"""`exec`: run a program by its argument list, no shell, and stream what it does.

Pipes are read only when the gateway's credit takes what they hold, so a fast program waits at its pipe. When the
command is cancelled or its deadline passes, the program and everything it started is killed. A program that left
children holding its output open ends a moment after it exits; it is not waited for what they print. They live on,
as they would after a shell: starting a service is a legitimate thing to do.

asyncio's own subprocess is not used: its `wait` may wait for the pipes too, and its readers run ahead of credit.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
from typing import IO, Annotated

import msgspec

from fairlead.agent.builtin.family import MARK, descendants, kill
from fairlead.agent.command import Command
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT

PROGRAMS = 64
"""At once: each takes four descriptors of the agent's 1,024, and a host under inquiry has work of its own."""
LINGER = 0.5
"""Seconds after the exit for output that is still in the pipes, unless there is nobody left to write."""
GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL; the protocol gives 10 for all of it."""


class Exec:
    """The method `exec` of one agent: so many programs at once, the others in order."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(PROGRAMS)

    async def execute(
        self,
        command: Command,
        argv: Annotated[list[str], msgspec.Meta(min_length=1)],
        env: dict[str, str] = {},  # noqa: B006  # read into a schema, never changed
        cwd: str | None = None,
        stdin: bool = False,
    ) -> dict[str, int]:
        """{"exit_code": n}, or {"signal": n} when a signal ended it. Raises CommandError `exec_failed`."""
        async with self._turn:
            return await _execute(command, argv, {**os.environ, **env, MARK: command.id}, cwd, stdin)


async def _execute(
    command: Command, argv: list[str], env: dict[str, str], cwd: str | None, stdin: bool
) -> dict[str, int]:
    program = Program(argv, env, cwd, stdin)
    pumps = [
        asyncio.create_task(_pump(command, "stdout", program.stdout)),
        asyncio.create_task(_pump(command, "stderr", program.stderr)),
    ]
    feeder = asyncio.create_task(_feed(command, program.stdin)) if program.stdin is not None else None
    tasks = [*pumps, feeder] if feeder is not None else pumps
    try:
        await program.exited()
        await asyncio.wait(pumps, timeout=LINGER)
        # What the program itself wrote is in the pipes by now. It is read to the end however long credit takes,
        # but not what others write behind it.
        program.stdout.finish()
        program.stderr.finish()
        await asyncio.gather(*pumps)
    except BaseException:
        await _kill(program, command.id)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        code = program.close()
    return {"exit_code": code} if code >= 0 else {"signal": -code}


class Program:
    """A started process, its three pipes, and its exit."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None, stdin: bool) -> None:
        """Raises CommandError `exec_failed`."""
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=env,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as e:
            name = errno.errorcode.get(e.errno or 0, "") if isinstance(e, OSError) else "EINVAL"
            raise CommandError("exec_failed", f"cannot run {argv[0]!r}: {e}", errno=name) from e
        self.pid = self._process.pid
        self.stdin = Pipe(self._process.stdin) if self._process.stdin is not None else None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout = Pipe(self._process.stdout)
        self.stderr = Pipe(self._process.stderr)
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as e:
            self._process.kill()
            self._process.wait()
            raise CommandError("exec_failed", f"cannot watch {argv[0]!r}: {e}", temporary=True) from e

    async def exited(self) -> None:
        """Return when the process itself has ended, whoever holds its pipes. It stays a zombie until `close`, so
        that its id, which is its group's too, cannot become another's.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)

    def signal(self, number: int) -> None:
        """To the whole group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self) -> int:
        """Reap it and give back its descriptors; the return code, below 0 for a signal."""
        os.close(self._pidfd)
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        code = self._process.poll()
        return -signal.SIGKILL if code is None else code  # None: killed, but still in the kernel's hands


class Pipe:
    """Our end of a pipe, read or written only when asked to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._fd = file.fileno()
        self._quota: int | None = None
        self._news = asyncio.Event()
        os.set_blocking(self._fd, False)

    async def read(self, limit: int) -> bytes:
        """What there is; empty at the end."""
        while self._quota is None or self._quota > 0:
            try:
                data = os.read(self._fd, limit if self._quota is None else min(limit, self._quota))
            except BlockingIOError:
                await self._readable()
                continue
            if self._quota is not None:
                self._quota -= len(data)
            return data
        return b""

    async def _readable(self) -> None:
        self._news.clear()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._news.set)
        try:
            await self._news.wait()
        finally:
            loop.remove_reader(self._fd)

    def finish(self) -> None:
        """The end comes behind what is in the pipe now."""
        unread = bytearray(4)
        fcntl.ioctl(self._fd, termios.FIONREAD, unread)
        self._quota = int.from_bytes(unread, sys.byteorder)
        self._news.set()

    async def write(self, data: bytes) -> None:
        """All of `data`. Raises BrokenPipeError when nobody reads any more."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                await self._writable()

    async def _writable(self) -> None:
        self._news.clear()
        loop = asyncio.get_running_loop()
        loop.add_writer(self._fd, self._news.set)
        try:
            await self._news.wait()
        finally:
            loop.remove_writer(self._fd)

    def close(self) -> None:
        self._file.close()


async def _feed(command: Command, pipe: Pipe) -> None:
    """Input to the program; one that does not want it any more is no error."""
    try:
        async for data in command.stdin:
            await pipe.write(data)
    except BrokenPipeError:
        pass
    pipe.close()


async def _kill(program: Program, command: str) -> None:
    """End the program and all that came of it: asked first, then killed."""
    family = await asyncio.to_thread(descendants, program.pid, command)
    program.signal(signal.SIGTERM)
    await _exited(program)
    family |= await asyncio.to_thread(descendants, program.pid, command)
    program.signal(signal.SIGKILL)
    kill(family)
    await _exited(program)


async def _exited(program: Program) -> None:
    try:
        async with asyncio.timeout(GRACE):
            await program.exited()
    except TimeoutError:
        pass


async def _pump(command: Command, kind: str, pipe: Pipe) -> None:
    while data := await pipe.read(CHUNK_LIMIT):
        await command.write(kind, data)
