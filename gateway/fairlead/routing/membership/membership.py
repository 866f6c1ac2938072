"""This node's standing in the fleet: its name and life, the fleet's clock, the era of the data, the table of nodes.

Updated by the node's beat, read by everything in routing. The one clock is Redis TIME, taken at each beat and
carried on by this process's monotonic clock; no two machines' wall clocks are ever compared.
"""

from __future__ import annotations

import asyncio
import time

from fairlead.errors import CommandUnknown
from fairlead.fleet.data_epoch import DataEpoch
from fairlead.fleet.schema import ALIVE_MS, AWAY_MS, NodeTable
from fairlead.routing.timeouts import VALID_MS

REBUILT_MS = 600_000
"""After that a node that still goes through its links does so for another reason."""


class Reconciliation:
    """Whether the links of this node may differ from their rows in Redis, and are being compared with them."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._running = False

    def request(self) -> None:
        """Something may have made links and rows differ: all links are compared soon."""
        self._requested.set()

    @property
    def pending(self) -> bool:
        """True while a comparison is requested or runs."""
        return self._running or self._requested.is_set()

    async def begin(self, timeout: float) -> None:
        """Wait until a comparison is requested, or for `timeout` seconds; the caller compares and calls `end`."""
        try:
            async with asyncio.timeout(timeout):
                await self._requested.wait()
        except TimeoutError:
            pass
        self._requested.clear()
        self._running = True

    def end(self) -> None:
        self._running = False


class Membership:
    def __init__(self, node: str) -> None:
        self.reconciliation = Reconciliation()
        self.node = node
        self.epoch = ""
        self.table = NodeTable({})
        self.data_epoch: DataEpoch | None = None
        self.alive_since = 0
        """When this node's beats began, or were answered again after a time in which others took it for dead (ms)."""
        self._offset = 0.0
        self._answered_at = float("-inf")

    @property
    def lease(self) -> str:
        """How leases name this node in its present life."""
        return f"{self.node}#{self.epoch}"

    def heartbeat_answered(self, redis_now: int) -> bool:
        """A beat was answered with `redis_now` (ms). True when that came so late that others took us for dead."""
        late = not self.alive
        if late:
            self.alive_since = redis_now
        self._answered_at = time.monotonic()
        self._offset = redis_now - self._answered_at * 1000
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
    def since_heartbeat(self) -> float:
        """Seconds since the last good beat; infinite before the first."""
        return time.monotonic() - self._answered_at

    @property
    def alive(self) -> bool:
        """Whether others still take this node for alive. If not, it must deliver nothing."""
        return self.since_heartbeat * 1000 <= ALIVE_MS

    def unknown(self, command: str) -> CommandUnknown:
        """The error for a command that has no record."""
        lost = ", or Redis has lost it with its data" if self.data_epoch is not None and self.data_epoch.lost else ""
        return CommandUnknown(f"no command {command}: it was never posted, or its results have expired{lost}")

    @property
    def incomplete(self) -> bool:
        """Whether agents that are linked may still be missing in Redis, which has lost its data: nodes may not have
        noticed yet, or say that they have not gone through their links."""
        if self.data_epoch is None or not self.data_epoch.lost:
            return False
        now = self.now()
        since = now - self.data_epoch.lost
        behind = any(row.doubtful and row.alive(now) for row in self.table.rows())
        return since <= ALIVE_MS or (since <= REBUILT_MS and behind)

    @property
    def rebuilding(self) -> bool:
        """Whether Redis has lost its data a moment ago: whom it does not know may be linked all the same."""
        return self.data_epoch is not None and self.data_epoch.lost > 0 and self.now() - self.data_epoch.lost <= AWAY_MS
