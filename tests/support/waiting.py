"""Waits for conditions that have no event to wait on, by polling. Used by tests, fixtures and the helpers beside it.

The deadlines are generous, because the machine may be busy; they matter only to a test that fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT = 20.0
"""Seconds that code which blocks waits for a condition."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = WAIT) -> T:
    """Wait, blocking, until the condition returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = 60.0) -> None:
    """Wait until the condition returns something true, or an awaitable of something true (which is asked less often).
    Raises TimeoutError after so many seconds.
    """
    async with asyncio.timeout(seconds):
        while True:
            holds, pause = condition(), 0.01
            if isinstance(holds, Awaitable):
                holds, pause = await holds, 0.05
            if holds:
                return
            await asyncio.sleep(pause)
