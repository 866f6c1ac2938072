"""One command watched to its end: its output here, our input there, Ctrl-C in the user's hand, its exit code.

Used by `exec`, `results` and `shell`. Ctrl-C asks the gateway to cancel and waits for the end, because a program that
is merely no longer watched goes on working; a second Ctrl-C leaves at once and says so. Leaving never cancels
anything. The client sees to it that lost connections lose and repeat nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.cli import exit_codes
from fairlead.cli.terminal import stdio
from fairlead.client import Chunk, Command, End
from fairlead.client.command import CHUNK
from fairlead.errors import FairleadError, InvalidRequest
from fairlead.text import plain

CANCEL_TIMEOUT = 10.0
"""Seconds: the time an agent has to end a cancelled program."""
AFTERMATH = 1.0
"""Seconds: a refusal of input this soon before the end of the command is a program that did not read its stdin."""


async def watch(command: Command, feed: Callable[[Command], Awaitable[None]] | None, cancels: bool) -> int:
    """Show all that comes; the exit code."""
    with interrupts() as (first, second):
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        showing = asyncio.create_task(_show_all(command, feed, opened))
        cancelling: asyncio.Task[None] | None = None
        try:
            await _first_of(showing, first, None)
            if not showing.done():
                if not cancels:
                    return exit_codes.INTERRUPTED
                talk("cancelling; Ctrl-C again leaves at once")
                cancelling = asyncio.create_task(_cancel(command, opened))
                await _first_of(showing, second, CANCEL_TIMEOUT)
            if not showing.done():
                late = "left" if second.done() else f"no end came within {CANCEL_TIMEOUT:g} s of the cancel"
                talk(f"{late}; {look(command.id)}")
                return exit_codes.INTERRUPTED
            return conclude(showing.result(), command.id)
        except BrokenPipeError:
            if cancels and command.id:
                await asyncio.wait({asyncio.create_task(_cancel(command, opened))}, timeout=CANCEL_TIMEOUT)
            raise
        finally:
            await end_tasks(showing, cancelling)


async def _first_of(showing: asyncio.Task[End], interrupt: asyncio.Future[None], timeout: float | None) -> None:
    both: list[asyncio.Future[Any]] = [showing, interrupt]
    await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


async def _show_all(
    command: Command, feed: Callable[[Command], Awaitable[None]] | None, opened: asyncio.Future[None]
) -> End:
    async with command:
        opened.set_result(None)
        feeding = asyncio.create_task(_forward(command, feed)) if feed is not None else None
        try:
            async for chunk in command:
                await show(chunk)
        finally:
            await end_tasks(feeding)
        assert command.end is not None, "what is followed ends with an end or an error"
        return command.end


async def _forward(command: Command, feed: Callable[[Command], Awaitable[None]]) -> None:
    try:
        await feed(command)
    except InvalidRequest as e:
        await asyncio.sleep(AFTERMATH)
        talk(f"the input is no longer taken: {e.message}")
    except (FairleadError, OSError) as e:
        talk(f"the input is cut off, the remote program waits for more: {e}")


async def pipe_stdin(command: Command, mark: bytes = b"") -> None:
    """All that is piped into us goes to the remote program, with `mark` before each chunk."""
    while data := await stdio.read(0, CHUNK - len(mark)):
        await command.input(mark + data)
    await command.input(b"", end=True)


async def _cancel(command: Command, opened: asyncio.Future[None]) -> None:
    """Ask for the cancel beside the stream, whose lines go on."""
    try:
        await asyncio.wait({opened})
        await command.cancel()
    except FairleadError as e:
        talk(f"the cancel did not reach the gateway: {e.message}")


@contextmanager
def interrupts() -> Iterator[tuple[asyncio.Future[None], asyncio.Future[None]]]:
    """Two futures: the first Ctrl-C, and the second."""
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    def handle() -> None:
        one = second if first.done() else first
        if not one.done():
            one.set_result(None)

    loop.add_signal_handler(signal.SIGINT, handle)
    try:
        yield first, second
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def end_tasks(*tasks: asyncio.Task[End] | asyncio.Task[None] | asyncio.Task[bool] | None) -> None:
    """Cancel them, and wait until they are over."""
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    for task in left:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: whoever needed it has had it


async def show(chunk: Chunk) -> None:
    await stdio.write(2 if chunk.kind in ("stderr", "log") else 1, chunk.data)


def conclude(end: End, command: str) -> int:
    """Say what the user must know beside the output; the exit code."""
    if end.truncated:
        talk("the output was longer than the gateway keeps (output_limit), its rest is lost")
    said = (end.error.message or end.error.code) if end.error is not None else ""
    if end.state in ("timeout", "expired"):
        word = "the deadline passed" if end.state == "timeout" else "it was never delivered within its time"
        talk(f"{end.agent}: {said or word}; --deadline or --queue gives it more ({look(command)})")
        return exit_codes.DEADLINE
    if end.state == "offline":
        word = said or "the agent is offline"
        talk(f"{end.agent}: {word}; `fairlead agents ls` says since when, --queue SECONDS waits for it")
        return exit_codes.UNAVAILABLE
    if said or end.state == "cancelled":
        talk(f"{end.agent}: {said or 'cancelled'}")
    if end.state == "cancelled":
        return exit_codes.INTERRUPTED
    remote = end.exit()
    if remote.signal:
        talk(f"{end.agent}: the program was ended by signal {remote.signal}")
        return 128 + remote.signal
    if remote.exit_code is not None:
        # Only eight bits of an exit code arrive at a shell; none but 0 may arrive as 0.
        return remote.exit_code & 0xFF or (exit_codes.FAILED if remote.exit_code else 0)
    return exit_codes.OK if end.state == "ok" else exit_codes.FAILED


def look(command: str) -> str:
    return f"`fairlead results {command}` shows what came" if command else "the gateway gave it no id yet"


def is_piped() -> bool:
    """Whether something can be read from stdin that nobody types. A closed stdin is not."""
    try:
        return not os.isatty(0) and os.fstat(0) is not None
    except OSError:
        return False


def talk(text: str) -> None:
    """To the user, in one line. Agents may have had a say in it."""
    print(f"fairlead: {plain(text)}", file=sys.stderr, flush=True)
