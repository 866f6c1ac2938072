"""`shell`: runs a program on a terminal of its own, with input, resizing and the job control that people expect.

The terminal is read only as far as the gateway's credit allows: otherwise the program waits. Its session gets SIGHUP,
then SIGKILL, when the command is cancelled, when the program closes its terminal but keeps running, and when the agent
stops. When a shell exits by itself, programs that were detached from it (nohup, setsid) keep running, as on any
terminal.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import signal
import struct
import termios
from functools import partial
from typing import Annotated

import msgspec

from fairlead.agent.builtin.options import ShellOptions
from fairlead.agent.builtin.process.descendants import COMMAND_VARIABLE
from fairlead.agent.builtin.process.environment import inherited_environment
from fairlead.agent.builtin.process.pipe import Pipe
from fairlead.agent.builtin.process.program import Program
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT

SHELLS = 32
"""Maximum number of shells. A further one is refused and not queued: people use them, and nobody waits in front of an
empty screen."""
LINGER = 0.5
"""Seconds allowed between the end of the terminal and that of the program, in either order."""
BACKLOG = 128 << 10
"""Bytes that a terminal may still contain when its program has exited: the kernel's buffers hold 68 KiB, and there is
no way to ask how full they are."""
DATA, RESIZE = 0, 1
"""The first byte of each chunk of input."""
END_OF_FILE = b"\x04"
REPEAT_END_OF_FILE = 1.0
"""Seconds between one end of file (Ctrl-D) and the next: one that is typed while a shell changes its terminal's mode is
lost, and one that ends a program does not end the shell that started it."""

Cells = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class TerminalSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the window, in characters."""

    cols: Cells
    rows: Cells


_decode = msgspec.json.Decoder(TerminalSize).decode


class Shell:
    """The method `shell` of one agent."""

    def __init__(self, options: ShellOptions = ShellOptions(), env_keep: tuple[str, ...] = ()) -> None:  # noqa: B008  # frozen
        self._env_keep = env_keep
        self._argv = options.argv
        self._open = 0

    async def execute(
        self,
        command: Command,
        argv: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None,
        cwd: str | None = None,
        env: dict[str, str] = {},  # noqa: B006  # read into a schema, never changed
        cols: Cells = 80,
        rows: Cells = 24,
        term: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._+-]{1,64}\Z")] = "xterm-256color",
    ) -> dict[str, int]:
        """Returns {"exit_code": n} or {"signal": n}, as `exec` does. Raises CommandError `exec_failed`,
        `program_forbidden`, `pty_gone`, `invalid_input` or `busy`.
        """
        if self._argv is not None and (env or argv not in (None, list(self._argv))):
            raise CommandError(
                "program_forbidden",
                f"this agent's configuration allows shell to run {self._argv[0]!r} only: leave argv and env out",
                key="shell.argv",
            )
        if self._open >= SHELLS:
            raise CommandError("busy", f"{SHELLS} shells are open, the limit: close one first", temporary=True)
        environment = {
            **inherited_environment(os.environ, self._env_keep),
            "TERM": term,
            **env,
            COMMAND_VARIABLE: command.id,
        }
        self._open += 1
        try:
            chosen = list(self._argv or argv or login_shell())
            return await _serve_terminal(command, chosen, environment, cwd, TerminalSize(cols, rows))
        finally:
            self._open -= 1


def login_shell() -> list[str]:
    """The login shell of the agent's own user."""
    try:
        program = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:  # a user id without a name, as in a container
        program = ""
    return [program or "/bin/sh", "-l"]


async def _serve_terminal(
    command: Command, argv: list[str], env: dict[str, str], cwd: str | None, size: TerminalSize
) -> dict[str, int]:
    terminal, program = _open_terminal(argv, env, cwd, size)
    exit_ = asyncio.create_task(program.exited())
    screen = asyncio.create_task(_send_output(command, terminal))
    keyboard = asyncio.create_task(_type_input(command, terminal))
    tasks = {exit_, screen, keyboard}
    try:
        while not (exit_.done() or screen.done()):
            await asyncio.wait({task for task in tasks if not task.done()}, return_when=asyncio.FIRST_COMPLETED)
            if keyboard.done():
                keyboard.result()
        if screen.done():
            screen.result()
            await asyncio.wait({exit_}, timeout=LINGER)
            if not exit_.done():
                raise CommandError(
                    "pty_gone",
                    f"{argv[0]!r} closed its terminal and continued, so it was ended: use exec if it needs none",
                )
        await asyncio.wait({screen}, timeout=LINGER)
        terminal.finish(BACKLOG)
        await screen
    except BaseException:
        await program.end(command.id, signal.SIGHUP)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # further errors no longer matter
        terminal.close()
        result = program.close()
    return result


def _open_terminal(argv: list[str], env: dict[str, str], cwd: str | None, size: TerminalSize) -> tuple[Pipe, Program]:
    """Open a terminal, and start the program with it as its controlling terminal."""
    try:
        parent_end, child_end = os.openpty()
    except OSError as e:
        raise CommandError("exec_failed", f"cannot open a terminal: {e}", temporary=True) from e
    try:
        _resize(parent_end, size)
        # The child has to take the controlling terminal, after setsid. Between fork and exec nothing may wait for a
        # lock that another thread holds. This partial runs only C code: one system call, without an allocation.
        take = partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
        program = Program(argv, env, cwd, stdin=child_end, stdout=child_end, stderr=child_end, in_child=take)
    except BaseException:
        os.close(parent_end)
        raise
    finally:
        os.close(child_end)
    return Pipe(parent_end), program


def _resize(fd: int, size: TerminalSize) -> None:
    """The kernel notifies the foreground program with SIGWINCH."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


async def _send_output(command: Command, terminal: Pipe) -> None:
    while data := await terminal.read(CHUNK_LIMIT):
        await command.write("pty", data)


async def _type_input(command: Command, terminal: Pipe) -> None:
    """Type the input into the terminal, and its end as Ctrl-D. Raises CommandError `invalid_input`."""
    try:
        async for chunk in command.stdin:
            if chunk[0] == DATA:
                await terminal.write(memoryview(chunk)[1:])
            elif chunk[0] == RESIZE:
                _resize(terminal.fd, _size(chunk[1:]))
            else:
                raise CommandError(
                    "invalid_input", f"input begins with byte {chunk[0]}: expected 0 before data, or 1 before a resize"
                )
        while True:
            await terminal.write(END_OF_FILE)
            await asyncio.sleep(REPEAT_END_OF_FILE)
    except BrokenPipeError:
        pass  # the terminal is gone: reading its output finds that, too


def _size(text: bytes) -> TerminalSize:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CommandError("invalid_input", f'resize: {e}: expected {{"cols": 80, "rows": 24}} after byte 1') from e
