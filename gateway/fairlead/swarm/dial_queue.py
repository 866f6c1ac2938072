"""Connection attempts by when they are due, some of them under way at once.

The crew adds them, first ones and retries alike, and is called for each. An attempt that must wait for a free place
keeps its time, so that latencies can be counted from when it was due.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine

AT_ONCE = 256
"""Dials under way in one process: more would only wait for each other in the gateway's backlog."""


class DialQueue:
    def __init__(self, dial: Callable[[int, float], Coroutine[None, None, None]]) -> None:
        """`dial` is called with the index that was added, and the time when it was due."""
        self._dial = dial
        self._due: list[tuple[float, int]] = []
        self._wake = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, due: float, index: int) -> None:
        """`due` by the event loop's clock."""
        heapq.heappush(self._due, (due, index))
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or until a dial raises: none of them should."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    now = loop.time()
                    while self._due and self._due[0][0] <= now and len(self._under_way) < AT_ONCE:
                        due, index = heapq.heappop(self._due)
                        task = group.create_task(self._dial(index, due))
                        self._under_way.add(task)
                        task.add_done_callback(self._ended)
                    self._wake.clear()
                    idle = not self._due or len(self._under_way) >= AT_ONCE
                    try:
                        async with asyncio.timeout_at(None if idle else self._due[0][0]):
                            await self._wake.wait()
                    except TimeoutError:
                        pass
        finally:
            self._under_way.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._wake.set()
