"""`exec`: run a program by its argument list, no shell, and stream what it does.

Pipes are read only when the gateway's credit takes what they hold, so a fast program waits at its pipe. When the
command is cancelled or its deadline passes, the program and everything it started is killed. A program that left
children holding its output open ends a moment after it exits; it is not waited for what they print. They live on,
as they would after a shell: starting a service is a legitimate thing to do.

With an allow list the caller's environment is refused too: LD_PRELOAD makes any program into any other.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from typing import IO, Annotated

import msgspec

from fairlead.agent.builtin.options import ExecOptions
from fairlead.agent.builtin.process.descendants import COMMAND_VARIABLE
from fairlead.agent.builtin.process.environment import inherited_environment
from fairlead.agent.builtin.process.pipe import Pipe
from fairlead.agent.builtin.process.program import Program
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT

PROGRAMS = 64
"""At once: each takes four descriptors of the agent's 1,024, and a host under inquiry has work of its own."""
LINGER = 0.5
"""Seconds after the exit for output that is still in the pipes, unless there is nobody left to write."""


class Exec:
    """The method `exec` of one agent: so many programs at once, the others in order."""

    def __init__(self, options: ExecOptions = ExecOptions(), env_keep: tuple[str, ...] = ()) -> None:  # noqa: B008  # frozen
        self._env_keep = env_keep
        self._allow = None if options.allow is None else frozenset(map(program_path, options.allow))
        self._turn = asyncio.Semaphore(PROGRAMS)

    async def execute(
        self,
        command: Command,
        argv: Annotated[list[str], msgspec.Meta(min_length=1)],
        env: dict[str, str] = {},  # noqa: B006  # read into a schema, never changed
        cwd: str | None = None,
        stdin: bool = False,
    ) -> dict[str, int]:
        """{"exit_code": n}, or {"signal": n} when a signal ended it. Raises CommandError `exec_failed`, or
        `program_forbidden` when the agent's configuration does not allow it.
        """
        executable = None if self._allow is None else self._allowed(argv[0], env)
        async with self._turn:
            environment = {**inherited_environment(os.environ, self._env_keep), **env, COMMAND_VARIABLE: command.id}
            program = Program(
                argv, environment, cwd, executable=executable, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL
            )
            return await _streamed(command, program)

    def _allowed(self, name: str, env: dict[str, str]) -> str:
        """The file that `name` means. It is what is run: nothing is looked for a second time."""
        assert self._allow is not None
        if env:
            raise CommandError(
                "program_forbidden",
                "this agent runs listed programs only and takes no env for them: leave env out",
                key="exec.allow",
            )
        found = shutil.which(name)
        if found is not None and (place := program_path(found)) in self._allow:
            return place
        raise CommandError(
            "program_forbidden",
            f"{name!r} is not among the programs that this agent's configuration allows: add its path to exec.allow "
            "there, or run one of those",
            key="exec.allow",
        )


def program_path(path: str) -> str:
    """`path` without links in its folder, since /bin may be /usr/bin. The last name stays: behind it may be a program
    that looks at the name it is called by.
    """
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


async def _streamed(command: Command, program: Program) -> dict[str, int]:
    stdin, stdout, stderr = (_pipe(file) for file in program.pipes())
    assert stdout is not None
    assert stderr is not None
    pumps = [
        asyncio.create_task(_pump(command, "stdout", stdout)),
        asyncio.create_task(_pump(command, "stderr", stderr)),
    ]
    feeder = asyncio.create_task(_feed(command, stdin)) if stdin is not None else None
    tasks = [*pumps, feeder] if feeder is not None else pumps
    try:
        await program.exited()
        await asyncio.wait(pumps, timeout=LINGER)
        # What the program itself wrote is in the pipes by now. It is read to the end however long credit takes,
        # but not what others write behind it.
        stdout.finish()
        stderr.finish()
        await asyncio.gather(*pumps)
    except BaseException:
        await program.end(command.id)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for pipe in (stdin, stdout, stderr):
            if pipe is not None:
                pipe.close()
        result = program.close()
    return result


def _pipe(file: IO[bytes] | None) -> Pipe | None:
    """A descriptor of our own, so that only one of the two owns it."""
    if file is None:
        return None
    with file:
        return Pipe(os.dup(file.fileno()))


async def _feed(command: Command, pipe: Pipe) -> None:
    """Input to the program; one that does not want it any more is no error."""
    try:
        async for data in command.stdin:
            await pipe.write(data)
    except BrokenPipeError:
        pass
    pipe.close()


async def _pump(command: Command, kind: str, pipe: Pipe) -> None:
    while data := await pipe.read(CHUNK_LIMIT):
        await command.write(kind, data)
