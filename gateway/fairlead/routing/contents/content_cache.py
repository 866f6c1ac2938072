"""The contents that this node gives to its agents: each is read from Redis once, however many agents ask for it.

The delivery of input calls it. Those that were asked for longest ago give way when the cache is full.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead.fleet.contents.content_store import Contents
from fairlead.telemetry.metrics import Metrics

CACHE_BYTES: Final = 64 << 20
ENTRY_BYTES: Final = 512
"""What an entry takes besides its octets: without it, a caller could have millions of contents of a few octets kept."""


class ContentCache:
    def __init__(self, contents: Contents, metrics: Metrics, limit: int = CACHE_BYTES) -> None:
        self._contents = contents
        self._limit = limit
        self._found: dict[str, bytes] = {}
        """Those that were asked for longest ago first."""
        self._size = self._reads = 0
        self._reading: dict[str, asyncio.Task[bytes | None]] = {}
        metrics.add_counter(
            "fairlead_content_reads_total", "Contents that this node has read from Redis", lambda: self._reads
        )
        metrics.add_gauge(
            "fairlead_content_cache_bytes",
            "Contents that this node has in memory",
            lambda: self._size - ENTRY_BYTES * len(self._found),
        )

    async def find(self, name: str) -> bytes | None:
        """The octets of a content; None if it is gone. Raises BusUnavailable."""
        if (data := self._found.pop(name, None)) is not None:
            self._found[name] = data
            return data
        reading = self._reading.get(name)
        if reading is None:
            reading = self._reading[name] = asyncio.create_task(self._read(name))
            reading.add_done_callback(lambda _: self._reading.pop(name, None))
        return await asyncio.shield(reading)

    async def _read(self, name: str) -> bytes | None:
        self._reads += 1
        data = await self._contents.get(name)
        if data is None:
            return None
        self._found[name] = data
        self._size += len(data) + ENTRY_BYTES
        while self._size > self._limit and len(self._found) > 1:
            self._size -= len(self._found.pop(next(iter(self._found)))) + ENTRY_BYTES
        return data
