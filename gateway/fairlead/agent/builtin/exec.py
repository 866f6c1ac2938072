"""`exec`: runs a program by its argument list, without a shell, and streams its output.

Pipes are read only as far as the gateway's credit allows, so a program that writes faster blocks on its pipe. When the
command is cancelled or its deadline passes, the program and everything that it started are killed. If children of the
program keep its output open, the command ends a moment after the program exits and does not wait for their output. The
children keep running, as they would after a shell: starting a service is legitimate.

With an allow list, variables from the caller are refused as well: LD_PRELOAD can turn any program into any other.
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
"""Maximum number of programs at once: each takes four of the agent's 1,024 file descriptors, and the host has other
work to do."""
LINGER = 0.5
"""Seconds to wait after the exit for output that is still in the pipes, unless no process has them open any more."""


class Exec:
    """The method `exec` of one agent. Programs beyond the limit wait their turn."""

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
        """Returns {"exit_code": n}, or {"signal": n} when a signal ended it. Raises CommandError `exec_failed`, or
        `program_forbidden` when the agent's configuration does not allow the program.
        """
        executable = None if self._allow is None else self._allowed(argv[0], env)
        async with self._turn:
            environment = {**inherited_environment(os.environ, self._env_keep), **env, COMMAND_VARIABLE: command.id}
            program = Program(
                argv, environment, cwd, executable=executable, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL
            )
            return await stream(command, program)

    def _allowed(self, name: str, env: dict[str, str]) -> str:
        """The path of the program that `name` means. Exactly this file is run: there is no second lookup."""
        assert self._allow is not None
        if env:
            raise CommandError(
                "program_forbidden",
                "this agent runs only listed programs, and takes no env for them: leave env out",
                key="exec.allow",
            )
        found = shutil.which(name)
        if found is not None and (place := program_path(found)) in self._allow:
            return place
        raise CommandError(
            "program_forbidden",
            f"this agent's configuration does not allow {name!r}: run a program of exec.allow, or add the path of this "
            "one there",
            key="exec.allow",
        )


def program_path(path: str) -> str:
    """`path` with the links in its folder resolved, since /bin may be /usr/bin. The last name stays: the program may
    look at the name by which it is called.
    """
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


async def stream(command: Command, program: Program) -> dict[str, int]:
    """Stream the output of a program until it has ended; returns how it did."""
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
        # What the program itself wrote is in the pipes by now. It is read to the end, however long credit takes; what
        # other processes write later is not.
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
    """A Pipe with a duplicate of the descriptor, so that each descriptor has one owner."""
    if file is None:
        return None
    with file:
        return Pipe(os.dup(file.fileno()))


async def _feed(command: Command, pipe: Pipe) -> None:
    """Pass the input to the program. It is not an error if the program has closed its end."""
    try:
        async for data in command.stdin:
            await pipe.write(data)
    except BrokenPipeError:
        pass
    pipe.close()


async def _pump(command: Command, kind: str, pipe: Pipe) -> None:
    while data := await pipe.read(CHUNK_LIMIT):
        await command.write(kind, data)
