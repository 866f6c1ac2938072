"""This node's standing in the fleet: its name and life, the fleet's clock, the era of the data, the table of nodes.

Updated by the node's beat, read by everything in routing. The one clock is Redis TIME, taken at each beat and
carried on by this process's monotonic clock; no two machines' wall clocks are ever compared.
"""

from __future__ import annotations

import time

from fairlead.errors import CommandUnknown
from fairlead.fleet.data_epoch import DataEpoch
from fairlead.fleet.schema import ALIVE_MS, AWAY_MS, NodeTable
from fairlead.routing.times import VALID_MS

REBUILT_MS = 600_000
"""After that a node that still goes through its links does so for another reason."""


class Standing:
    def __init__(self, node: str) -> None:
        self.node = node
        self.epoch = ""
        self.table = NodeTable({})
        self.era: DataEpoch | None = None
        self.back = 0
        """When this node's beats began, or were answered again after a time in which others took it for dead (ms)."""
        self._offset = 0.0
        self._beaten = float("-inf")

    @property
    def lease(self) -> str:
        """How leases name this node in its present life."""
        return f"{self.node}#{self.epoch}"

    def beaten(self, redis_now: int) -> bool:
        """A beat was answered with `redis_now` (ms). True when that came so late that others took us for dead."""
        late = not self.good
        if late:
            self.back = redis_now
        self._beaten = time.monotonic()
        self._offset = redis_now - self._beaten * 1000
        return late

    def now(self) -> int:
        """Redis TIME in ms, as well as this node knows it."""
        return int(time.monotonic() * 1000 + self._offset)

    def valid_until(self) -> int:
        return self.now() + VALID_MS

    def living(self) -> list[str]:
        """The leases of all nodes that live, this one's among them."""
        now, mine = self.now(), self.lease
        return [mine, *(row.lease for row in self.table.rows() if row.lease != mine and row.alive(now))]

    @property
    def since_beat(self) -> float:
        """Seconds since the last good beat; infinite before the first."""
        return time.monotonic() - self._beaten

    @property
    def good(self) -> bool:
        """Whether others still take this node for alive. If not, it must deliver nothing."""
        return self.since_beat * 1000 <= ALIVE_MS

    def unknown(self, command: str) -> CommandUnknown:
        """The error for a command that has no record."""
        lost = ", or Redis has lost it with its data" if self.era is not None and self.era.lost else ""
        return CommandUnknown(f"no command {command}: it was never posted, or its results have expired{lost}")

    @property
    def incomplete(self) -> bool:
        """Whether agents that are linked may still be missing in Redis, which has lost its data: nodes may not have
        noticed yet, or say that they have not gone through their links."""
        if self.era is None or not self.era.lost:
            return False
        now = self.now()
        since = now - self.era.lost
        behind = any(row.doubtful and row.alive(now) for row in self.table.rows())
        return since <= ALIVE_MS or (since <= REBUILT_MS and behind)

    @property
    def rebuilding(self) -> bool:
        """Whether Redis has lost its data a moment ago: whom it does not know may be linked all the same."""
        return self.era is not None and self.era.lost > 0 and self.now() - self.era.lost <= AWAY_MS
