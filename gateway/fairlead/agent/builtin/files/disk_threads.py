"""Runs calls that wait for a disk in threads: a network file system may block them for ever, and must not block the
event loop.

Used by the methods that touch files. A call is never abandoned while its thread works on a descriptor: a caller that is
cancelled waits for it first. The threads are daemon threads, so that a disk that hangs does not keep the agent from
ending. Each runs one call, so an idle agent has none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CALLS = 8
"""Maximum number of calls at once: disks serve few at a time, and each call reads or writes at most 256 KiB."""


class DiskThreads:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(CALLS)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns, or raise what it raises."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = function(*args, **kwargs)
            except BaseException as e:  # raised to the caller
                report: tuple[Callable[..., None], object] = (_fail, e)
            else:
                report = (_succeed, value)
            try:
                loop.call_soon_threadsafe(report[0], outcome, report[1])
            except RuntimeError:
                pass  # the loop is closed: the agent has ended before this call

        async with self._turn:
            threading.Thread(target=work, name="fairlead-disk", daemon=True).start()
            try:
                return await asyncio.shield(outcome)
            except asyncio.CancelledError:
                await asyncio.wait({outcome})
                if not outcome.cancelled():
                    outcome.exception()  # retrieved, so that asyncio does not log it
                raise


def _succeed(outcome: asyncio.Future[T], value: T) -> None:
    if not outcome.done():
        outcome.set_result(value)


def _fail(outcome: asyncio.Future[T], e: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(e)
