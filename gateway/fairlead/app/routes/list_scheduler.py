"""Turns for long answers: lists are built slice by slice, one slice at a time in the whole node, with pauses between.

Made by the routes of agents. A list goes through thousands of rows, and everything else of the node, posts above all,
runs on the same event loop and asks the same Redis. So only one list is in its turn at any time, and after its turn
nobody has one for as long as it took: lists take at most half of the loop, and ask Redis for one slice at a time. Turns
go round in the order of asking, so a short list is not kept waiting by long ones. It sets no deadline: who waits for a
place or a turn does so within a deadline of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

PLACES: Final = 32
"""Lists that are under way at once: each keeps what it has found, a megabyte at most as a rule. Others wait, in the
order in which they came."""
PAUSE_LIMIT: Final = 0.01
"""Seconds that a pause takes at most: a turn that took longer has waited for a Redis that is slow or far away, and has
not kept the loop busy meanwhile."""


class ListScheduler:
    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)
        self._turn = asyncio.Lock()
        self.places_taken = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for one of the places, and keep it."""
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
