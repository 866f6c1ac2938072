"""Ends tasks that use redis-py's own clients. `ClusterStore` calls it when it is closed.

redis-py sends with `asyncio.wait_for`, which drops a cancellation in Python 3.11 if it comes when what it waits for has
just ended. The task then goes on, so it is cancelled again. It starts no tasks and reads no results of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

AGAIN: Final = 0.5
"""Seconds after which a task that has not ended is cancelled again."""


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel `tasks`, and wait until all have ended."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
