"""Slots for work that needs a thread or a process: the numbers that run and that wait are bounded, and further work is
refused.

Each runner has one WorkerSlots. Waiting work is served in order. A slot is released when the work has really ended,
which for a thread may be long after its command.
"""

from __future__ import annotations

import asyncio


class WorkerSlots:
    def __init__(self, limit: int, waiting: int) -> None:
        self._running = asyncio.Semaphore(limit)
        self._free = limit + waiting

    def reserve(self) -> bool:
        """Reserve a slot, which may become free later. Returns False if too many are waiting already."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for the slot that was reserved. If this wait is cancelled, the caller must call `cancel_reservation`."""
        await self._running.acquire()

    def cancel_reservation(self) -> None:
        """Give back a slot that was reserved and not acquired."""
        self._free += 1

    def release(self) -> None:
        """Give back a slot that was acquired."""
        self._running.release()
        self._free += 1
