"""Runs a program of the host for a method, without a shell and without input, and passes on what it writes.

Used by the methods that ask a tool of the host, such as systemctl. When the command is cancelled or its deadline
passes, the program and all that it started are ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import IO

from fairlead.agent.builtin.process.descendants import COMMAND_VARIABLE
from fairlead.agent.builtin.process.environment import inherited_environment
from fairlead.agent.builtin.process.pipe import Pipe
from fairlead.agent.builtin.process.program import Program
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.wire.messages import CHUNK_LIMIT

TEXT_LIMIT = 64 << 10
"""Bytes of output that are kept as text; of errors a fortieth."""
LINGER = 0.5
"""Seconds to wait for the rest of the output after the exit."""


def find_tool(name: str, method: str) -> str:
    """The path of a program of the host. Raises CommandError `unsupported`."""
    found = shutil.which(name)
    if found is None:
        raise CommandError("unsupported", f"this host has no {name}, which {method} needs")
    return found


async def run_tool(
    command: Command, argv: Sequence[str], write: Callable[[bytes], Awaitable[None]]
) -> tuple[dict[str, int], str]:
    """Run a program and pass what it writes on; returns how it ended, and the beginning of its errors."""
    environment = {
        **inherited_environment(os.environ), "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", COMMAND_VARIABLE: command.id,
    }  # fmt: skip
    program = Program(argv, environment, "/")
    _, stdout, stderr = program.pipes()
    assert stdout is not None
    assert stderr is not None
    errors = bytearray()

    async def keep(data: bytes) -> None:
        errors.extend(data[: max(TEXT_LIMIT // 40 - len(errors), 0)])

    pipes = _pipe(stdout), _pipe(stderr)
    pumps = [asyncio.create_task(_pump(pipe, to)) for pipe, to in zip(pipes, (write, keep), strict=True)]
    try:
        await program.exited()
        await asyncio.wait(pumps, timeout=LINGER)
        for pipe in pipes:
            pipe.finish()
        await asyncio.gather(*pumps)
    except BaseException:
        await program.end(command.id)
        raise
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        for pipe in pipes:
            pipe.close()
        result = program.close()
    lines = map(str.strip, errors.decode(errors="replace").splitlines())
    return result, " ".join(filter(None, lines))  # an error is one line


async def tool_text(command: Command, argv: Sequence[str]) -> tuple[dict[str, int], str, str]:
    """Run a program that writes little: how it ended, its output and its errors."""
    text = bytearray()

    async def keep(data: bytes) -> None:
        text.extend(data[: max(TEXT_LIMIT - len(text), 0)])

    result, errors = await run_tool(command, argv, keep)
    return result, text.decode(errors="replace"), errors


def _pipe(file: IO[bytes]) -> Pipe:
    """A Pipe with a duplicate of the descriptor, so that each descriptor has one owner."""
    with file:
        return Pipe(os.dup(file.fileno()))


async def _pump(pipe: Pipe, write: Callable[[bytes], Awaitable[None]]) -> None:
    while data := await pipe.read(CHUNK_LIMIT):
        await write(data)
