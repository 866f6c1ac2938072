"""Follows one command until it ends: prints its results, sends it our input, passes on Ctrl-C.

Used by `exec`, `results` and `shell`. The first Ctrl-C asks the gateway to cancel the command and waits for its end,
because a program keeps running when it is merely no longer followed. The second one exits at once and says so. Exiting
by itself never cancels anything. The client makes sure that a lost connection neither loses nor repeats results.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.cli import exit_codes
from fairlead.cli.terminal import stdio
from fairlead.cli.terminal.cancellation import cancel_command
from fairlead.cli.terminal.results import RECORDED, REPLAYED, Printer, notify, results_hint
from fairlead.client import Command, End
from fairlead.errors import FairleadError, InvalidRequest

END_TIMEOUT = 10.0
"""Seconds: the time that an agent has to end a cancelled program."""
UNREAD_INPUT = 1.0
"""Seconds before a refusal of input is reported: a program that ends without reading its stdin is no error."""

Feed = Callable[[Command], Awaitable[None]]
"""Sends the user's input to a command, until there is no more."""


async def follow_command(command: Command, printer: Printer, feed: Feed | None, cancels: bool) -> int:
    """Print all results as they come; returns the exit code. `cancels`: Ctrl-C cancels the command."""
    with interrupts() as (first, second):
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        printing = asyncio.create_task(_print_results(command, printer, feed, opened))
        cancelling: asyncio.Task[None] | None = None
        try:
            await _wait_first(printing, first, None)
            if not printing.done():
                if not cancels:
                    return exit_codes.INTERRUPTED
                notify("cancelling; press Ctrl-C again to exit at once")
                cancelling = asyncio.create_task(_cancel(command, opened))
                await _wait_first(printing, second, END_TIMEOUT)
            if not printing.done():
                why = "left" if second.done() else f"the command did not end within {END_TIMEOUT:g} s of the cancel"
                notify(f"{why}; {results_hint(command.id)}")
                return exit_codes.INTERRUPTED
            return await printer.end(printing.result(), command.id)
        except BrokenPipeError:
            if cancels and command.id:
                await cancel_command(command)
            raise
        finally:
            await cancel_tasks(printing, cancelling)


async def _wait_first(printing: asyncio.Task[End], interrupt: asyncio.Future[None], timeout: float | None) -> None:
    both: list[asyncio.Future[Any]] = [printing, interrupt]
    await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


async def _print_results(command: Command, printer: Printer, feed: Feed | None, opened: asyncio.Future[None]) -> End:
    async with command:
        opened.set_result(None)
        if command.recorded:
            notify(RECORDED)
        if command.replayed:
            notify(f"command {command.id} {REPLAYED}")
        elif command.waits_for:
            notify(f"the agent is {command.waits_for}; the command waits for it")
        feeding = asyncio.create_task(_feed(command, feed)) if feed is not None else None
        try:
            async for chunk in command:
                await printer.write(chunk)
        finally:
            await cancel_tasks(feeding)
        assert command.end is not None, "a followed command ends with an end or an error"
        return command.end


async def _feed(command: Command, feed: Feed) -> None:
    try:
        await feed(command)
    except InvalidRequest as e:
        await asyncio.sleep(UNREAD_INPUT)
        notify(f"the command takes no more input: {e.message}")
    except (FairleadError, OSError) as e:
        notify(f"the input was cut off, and the remote program waits for more: {e}")


async def pipe_stdin(command: Command, prefix: bytes = b"") -> None:
    """Send our stdin to the remote program, with `prefix` before each chunk, until its end of file."""
    while data := await stdio.read(0, command.input_limit - len(prefix)):
        await command.input(prefix + data)
    await command.input(b"", end=True)


async def _cancel(command: Command, opened: asyncio.Future[None]) -> None:
    """Cancel the command with a request of its own: the stream of results goes on."""
    await asyncio.wait({opened})
    await cancel_command(command)


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


async def cancel_tasks(*tasks: asyncio.Task[End] | asyncio.Task[None] | asyncio.Task[bool] | None) -> None:
    """Cancel the tasks and wait until they have ended."""
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    for task in left:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, because asyncio would otherwise log it; whoever needed it has seen it


def is_piped() -> bool:
    """Whether stdin is open and is not a terminal."""
    try:
        return not os.isatty(0) and os.fstat(0) is not None
    except OSError:
        return False
