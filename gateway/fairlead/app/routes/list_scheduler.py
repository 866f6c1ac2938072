"""Schedules long lists: a node builds them in slices, one slice at a time, with pauses in between.

The routes of agents create it. A list reads thousands of rows, and all other work of the node, above all posts, uses
the same event loop and the same Redis. So only one list has its turn at any time, and after a turn there is a pause as
long as the turn was: lists use at most half of the event loop, and read one slice at a time from Redis.
Turns are given in the order of the requests, so long lists do not delay a short one. It sets no deadline:
callers that wait for a place or a turn set their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

PLACES: Final = 32
"""The number of lists that are built at once. Each keeps the agents found so far, usually at most a megabyte. Further
lists wait in the order of their arrival."""
PAUSE_LIMIT: Final = 0.01
"""The longest pause in seconds. A longer turn was waiting for a Redis that is slow or far away, and did not block the
event loop meanwhile."""


class ListScheduler:
    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)
        self._turn = asyncio.Lock()
        self.places_taken = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for one of the places, and hold it inside the context."""
        async with self._places:
            self.places_taken += 1
            try:
                yield
            finally:
                self.places_taken -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn; when it is over, pause as long as it took before the next one begins."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            begun = loop.time()
            yield
            await asyncio.sleep(min(loop.time() - begun, PAUSE_LIMIT))
