"""Places for work that takes a thread or a process: so many at once, so many waiting, no more.

Each runner holds one. Those that wait are served in order. A place is free again when the work has really ended,
which for a thread may be long after its command: the count stays true.
"""

from __future__ import annotations

import asyncio


class WorkerSlots:
    def __init__(self, limit: int, waiting: int) -> None:
        self._turn = asyncio.Semaphore(limit)
        self._free = limit + waiting

    def book(self) -> bool:
        """A place, at once or later; False when too many wait already."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def turn(self) -> None:
        """Wait for the place that was booked. When cancelled, the booking is still to be given up."""
        await self._turn.acquire()

    def give_up(self) -> None:
        """Booked, and will not come."""
        self._free += 1

    def done(self) -> None:
        """Had its turn, and has ended."""
        self._turn.release()
        self._free += 1
