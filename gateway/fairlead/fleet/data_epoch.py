"""The era of the data in Redis: a random mark that is gone when the data is.

Read by each node with its beat, and by whoever misses a record that should be there. A node that knew another mark
has lived through a loss, and says so in the new one; without it a fleet that was wiped would look like a new one,
and agents that are linked all the time would be called unknown. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet import schema
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text


@dataclass(frozen=True, slots=True)
class DataEpoch:
    """`lost` is when the data of the era before was found to be gone (Redis TIME in ms), 0 for the first era."""

    mark: str
    lost: int = 0

    @classmethod
    def parse(cls, value: str) -> DataEpoch:
        mark, _, lost = value.partition(" ")
        return cls(mark, int(lost or 0))


class DataEpochs:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    async def read(self) -> DataEpoch | None:
        """The era that Redis is in; None when nobody has marked it yet."""
        value = await self._store.submit("GET", schema.DATA_EPOCH, priority=Priority.CONTROL)
        return None if value is None else DataEpoch.parse(text(value))

    async def mark(self, era: DataEpoch) -> DataEpoch:
        """Mark the era, unless somebody else has; returns the one that holds."""
        mark = f"{era.mark} {era.lost}"
        value = await self._store.submit("SET", schema.DATA_EPOCH, mark, "NX", "GET", priority=Priority.CONTROL)
        return era if value is None else DataEpoch.parse(text(value))
