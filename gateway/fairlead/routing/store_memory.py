"""How full Redis is, and what this node therefore refuses.

`routing` runs its loop. Through `FleetStore`, `dispatch` asks whether a new command may be stored, and the recorder how
many bytes of events may be kept. What was accepted before always goes on: heartbeats, claims, results, ends and
cancellations are written by scripts that Redis runs even when its memory is full. So a full Redis costs new commands,
and never the fleet.
"""

from __future__ import annotations

import asyncio
import logging
import random
from enum import IntEnum

from fairlead.errors import BusUnavailable
from fairlead.store.backlog import Priority
from fairlead.store.errors import store_full
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text

logger = logging.getLogger(__name__)

LOW_SHARE = 0.80
"""The share of the limit from which on commands with a large payload are refused."""
FULL_SHARE = 0.90
"""The share from which on all new commands are refused. The rest is for what was accepted before."""
MARGIN = 0.02
"""How far the share must fall below a threshold before more is accepted again, so that answers do not alternate."""
LARGE_PAYLOAD = 4 * 1024
"""Bytes of a payload that is not accepted when memory is low."""
PERIOD, SOON = 5.0, 1.0
"""Seconds between two looks while memory is sufficient, and while half of it or more is used."""
EVENTS_SHARE = 0.05
"""The share of the limit that the events of the fleet may use."""
EVENTS_BYTES = 256 * 1024 * 1024
"""Bytes of events at most, also when Redis has no limit."""


class MemoryLevel(IntEnum):
    SUFFICIENT = 0
    LOW = 1
    FULL = 2


def next_level(level: MemoryLevel, share: float) -> MemoryLevel:
    """The level when this share of the limit is used, after `level`."""
    found = MemoryLevel.SUFFICIENT
    for candidate, least in ((MemoryLevel.LOW, LOW_SHARE), (MemoryLevel.FULL, FULL_SHARE)):
        if share >= (least - MARGIN if level >= candidate else least):
            found = candidate
    return found


class StoreMemory:
    def __init__(self, store: Pipeliner, limit: int) -> None:
        """`limit` is in bytes; 0 for the `maxmemory` of the server, if it has one."""
        self._store = store
        self._setting = limit
        self.limit = limit
        """In bytes; 0 if there is none, and then nothing is refused."""
        self.used = 0
        """In bytes, as the server compares it with its `maxmemory`."""
        self.level = MemoryLevel.SUFFICIENT
        self.refused = 0
        """Commands so far."""

    @property
    def share(self) -> float:
        """The used share of the limit; 0 without a limit."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def events_bytes(self) -> int:
        """How many bytes of events Redis may hold."""
        return min(EVENTS_BYTES, int(self.limit * EVENTS_SHARE)) if self.limit else EVENTS_BYTES

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except BusUnavailable as e:
                logger.debug("the memory of Redis is not known: %s", e)
            await asyncio.sleep((SOON if self.share >= 0.5 else PERIOD) * random.uniform(0.75, 1.25))

    async def refresh(self) -> None:
        """Ask Redis how much memory it uses. Raises BusUnavailable."""
        reply = await self._store.submit("INFO", "memory", priority=Priority.CONTROL)
        info = dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)
        # Buffers of replicas and of the append-only file do not count for maxmemory.
        self.used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
        allowed = int(info.get("maxmemory", 0))
        self.limit = min(filter(None, (self._setting, allowed)), default=0)
        self._set_level(next_level(self.level, self.share))

    def _set_level(self, level: MemoryLevel) -> None:
        was, self.level = self.level, level
        self._store.low_memory = level >= MemoryLevel.LOW
        if level > was:
            what = "new commands" if level is MemoryLevel.FULL else f"commands with more than {LARGE_PAYLOAD} bytes"
            logger.warning(
                "Redis at %s is nearly full: it uses %.0f %% of its %d MiB; %s are refused with store_full until "
                "results have expired, or until it has more memory",
                self._store.address, self.share * 100, self.limit >> 20, what,
            )  # fmt: skip
        elif level < was and level is MemoryLevel.SUFFICIENT:
            logger.info("Redis at %s has enough memory again: %.0f %% are used", self._store.address, self.share * 100)

    def check_command(self, payload: int) -> None:
        """Raises StoreFull if a new command with so many bytes of payload is not accepted now."""
        if self.level is MemoryLevel.SUFFICIENT or (self.level is MemoryLevel.LOW and payload <= LARGE_PAYLOAD):
            return
        self.refused += 1
        used = f"Redis uses {self.share:.0%} of its {self.limit >> 20} MiB"
        if self.level is MemoryLevel.LOW:
            used += f", and the command has {payload} bytes, of which {LARGE_PAYLOAD} are accepted now"
        raise store_full(used)
