"""A program that was started: waits for its exit, signals its process group, and ends it with everything that it
started.

Used by `exec` and `shell`. asyncio's subprocess is not suitable: its `wait` may wait for the pipes, too, and its
readers read more than credit allows. The process stays a zombie until `close`, so that its id, which is also that of
its group, is not reused while signals are sent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypedDict, Unpack

from fairlead.agent.builtin.process.descendants import descendants, kill
from fairlead.agent.errors import CommandError

GRACE = 3.0
"""Seconds between the first signal and SIGKILL; the protocol gives 10 for all of it."""


class MoreOptions(TypedDict, total=False):
    """With a `user` the program runs as that user with its groups, which needs the right to change them. It inherits
    the descriptors `pass_fds`."""

    user: str | None
    pass_fds: tuple[int, ...]


class Program:
    """A process that leads a session of its own. The descriptors that it is connected to belong to the caller."""

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
        **more: Unpack[MoreOptions],
    ) -> None:
        """`executable`, if given, is the file to run, with argv[0] as its name. Raises CommandError `exec_failed`."""
        identity: dict[str, Any] = {}
        if (user := more.get("user")) is not None:
            group = pwd.getpwnam(user).pw_gid
            identity = {"user": user, "group": group, "extra_groups": os.getgrouplist(user, group)}
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
                pass_fds=more.get("pass_fds", ()),
                **identity,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509  # only ever one system call made from C: see `shell`
            )
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            name = errno.errorcode.get(e.errno or 0, "") if isinstance(e, OSError) else "EINVAL"
            raise CommandError("exec_failed", f"cannot run {argv[0]!r}: {_why(argv[0], cwd, e)}", errno=name) from e
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
        """Return when the process itself has exited, even if others keep its descriptors open."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # Each waiter has a descriptor of its own, because the event loop allows only one reader for each descriptor.
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

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    async def end(self, command: str, first: int = signal.SIGTERM) -> None:
        """End the program and all its descendants: with the signal `first`, then with SIGKILL."""
        found = await asyncio.to_thread(descendants, self.pid, command)
        self.send_signal(first)
        await self.exited_within(GRACE)
        found |= await asyncio.to_thread(descendants, self.pid, command)
        self.send_signal(signal.SIGKILL)
        kill(found)
        await self.exited_within(GRACE)

    def close(self) -> dict[str, int]:
        """Reap the process; returns the result of the command."""
        os.close(self._pidfd)
        code = self._process.poll()
        if code is None:
            code = -signal.SIGKILL  # killed, but not ended by the kernel yet
        return {"exit_code": code} if code >= 0 else {"signal": -code}


def _why(program: str, cwd: str | None, error: Exception) -> str:
    """Why a program could not be started, and what was expected. The error itself is the answer where it is enough."""
    if cwd is not None and isinstance(error, OSError) and error.filename == cwd:
        return f"its working directory {cwd!r}: {error.strerror} (expected a folder on this host)"
    if not isinstance(error, FileNotFoundError):
        return str(error)
    if " " in program:
        return (
            "there is no such program (there is no shell: expected the program and each argument as a word of its own)"
        )
    if "/" in program:
        return "there is no such file, or the interpreter that it names is missing"
    return "there is no such program in the PATH of the agent (expected one of its folders to have it, or a whole path)"
