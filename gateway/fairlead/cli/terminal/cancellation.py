"""Cancels a command that is no longer followed, so that no program keeps running unnoticed.

Used by `exec`, `shell` and `cp`. Once the gateway has accepted a cancel, it ends the command even if the agent does not
answer. If a cancel does not reach the gateway, the user is told what to do; otherwise the command ends at its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.cli.terminal.results import REPLAYED, notify
from fairlead.client import Command
from fairlead.errors import FairleadError

CANCEL_TIMEOUT = 10.0
"""Seconds for the gateway to accept a cancel, which is repeated as long as no node can be reached."""


async def cancel_command(command: Command) -> bool:
    """Cancel the command. Returns False if the gateway did not accept that in time, which the user is told."""
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT):
            await command.cancel()
        return True
    except TimeoutError:
        why = f"the gateway did not accept the cancel within {CANCEL_TIMEOUT:g} s"
    except FairleadError as e:
        why = f"the cancel failed: {e.message}"
    notify(f"{why}, and the command may still run; try `fairlead cancel {command.id}`")
    return False


@asynccontextmanager
async def cancelled_on_failure(command: Command) -> AsyncIterator[None]:
    """Open the command, and cancel it if the block fails or Ctrl-C arrives while it opens: once it was posted the agent
    may run it, even if its id is not known here yet.
    """
    opening = asyncio.create_task(command.__aenter__())
    try:
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening], timeout=CANCEL_TIMEOUT)
            raise
        if command.replayed:
            notify(f"command {command.id} {REPLAYED}")
        yield
    except BaseException:
        if command.id and command.end is None:
            await cancel_command(command)
        raise
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await command.__aexit__(None, None, None)
