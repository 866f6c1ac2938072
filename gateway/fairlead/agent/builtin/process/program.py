"""A started process: its exit, signals to its group, and an end that leaves nothing of it behind.

Used by `exec` and `shell`. asyncio's own subprocess is not: its `wait` may wait for the pipes too, and its readers
run ahead of credit. The process stays a zombie until `close`, so that its id, which is its group's too, cannot
become another's while signals are sent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from fairlead.agent.builtin.process.descendants import descendants, kill
from fairlead.agent.errors import CommandError

GRACE = 3.0
"""Seconds between the first signal and SIGKILL; the protocol gives 10 for all of it."""


class Program:
    """The leader of a session of its own. What it is connected to belongs to the caller."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        executable: str | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        in_child: Callable[[], object] | None = None,
    ) -> None:
        """`executable` is run, if given, and argv[0] only told to it. Raises CommandError `exec_failed`."""
        try:
            self._process = subprocess.Popen(
                argv,
                executable=executable,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                bufsize=0,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509  # only ever one system call made from C: see `shell`
            )
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            name = errno.errorcode.get(e.errno or 0, "") if isinstance(e, OSError) else "EINVAL"
            raise CommandError("exec_failed", f"cannot run {argv[0]!r}: {e}", errno=name) from e
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as e:
            self._process.kill()
            self._process.wait()
            raise CommandError("exec_failed", f"cannot watch {argv[0]!r}: {e}", temporary=True) from e

    def pipes(self) -> tuple[IO[bytes] | None, IO[bytes] | None, IO[bytes] | None]:
        """stdin, stdout and stderr, where pipes were asked for."""
        return self._process.stdin, self._process.stdout, self._process.stderr

    async def exited(self) -> None:
        """Return when the process itself has ended, whoever holds what it had open."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # A descriptor of its own for each who waits: the loop knows one reader for each.
        pidfd = os.dup(self._pidfd)
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    async def exited_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.exited()
        except TimeoutError:
            return False
        return True

    def send(self, number: int) -> None:
        """To the whole group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    async def end(self, command: str, first: int = signal.SIGTERM) -> None:
        """End it and all that came of it: asked with the signal `first`, then killed."""
        family = await asyncio.to_thread(descendants, self.pid, command)
        self.send(first)
        await self.exited_within(GRACE)
        family |= await asyncio.to_thread(descendants, self.pid, command)
        self.send(signal.SIGKILL)
        kill(family)
        await self.exited_within(GRACE)

    def close(self) -> dict[str, int]:
        """Reap it; what the end of the command says of it."""
        os.close(self._pidfd)
        code = self._process.poll()
        if code is None:
            code = -signal.SIGKILL  # killed, but still in the kernel's hands
        return {"exit_code": code} if code >= 0 else {"signal": -code}
