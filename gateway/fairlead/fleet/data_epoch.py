"""The data epoch: a random mark in Redis that disappears together with the data.

Each node reads it with its heartbeat, and so does any code that misses a record which should exist. A node that knew
another mark detects that Redis has lost its data, and records this in the new mark. Without the mark, a fleet whose
data was lost would look like a new fleet, and agents that have a link would be reported as unknown. Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet import schema
from fairlead.store.backlog import Priority
from fairlead.store.reply import text
from fairlead.store.store import Store


@dataclass(frozen=True, slots=True)
class DataEpoch:
    """`lost` is when a node found the data of the previous epoch gone (Redis TIME in ms); 0 in the first epoch."""

    mark: str
    lost: int = 0

    @classmethod
    def parse(cls, value: str) -> DataEpoch:
        mark, _, lost = value.partition(" ")
        return cls(mark, int(lost or 0))


class DataEpochs:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self) -> DataEpoch | None:
        """The current data epoch; None if no node has written a mark yet."""
        value = await self._store.submit("GET", schema.DATA_EPOCH, priority=Priority.CONTROL)
        return None if value is None else DataEpoch.parse(text(value))

    async def mark(self, epoch: DataEpoch) -> DataEpoch:
        """Write the mark unless another node has written one. Returns the epoch that is in Redis afterwards."""
        mark = f"{epoch.mark} {epoch.lost}"
        value = await self._store.write("SET", schema.DATA_EPOCH, mark, "NX", "GET", priority=Priority.CONTROL)
        return epoch if value is None else DataEpoch.parse(text(value))
