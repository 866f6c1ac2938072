"""This node's standing in the fleet: its name and life, the fleet's clock and the last table of nodes.

Updated by the node's beat, read by everything in routing. The one clock is Redis TIME, taken at each beat and
carried on by this process's monotonic clock; no two machines' wall clocks are ever compared.
"""

from __future__ import annotations

import time

from fairlead.fleet.schema import ALIVE_MS, NodeTable

VALID_MS = 3_000
"""How long a claim or dispatch may take to be executed: three times the store's time-out, so that what this node
has given up is refused when a frozen server wakes and finds it in its buffer."""


class Standing:
    def __init__(self, node: str) -> None:
        self.node = node
        self.epoch = ""
        self.table = NodeTable({})
        self._offset = 0.0
        self._beaten = float("-inf")

    @property
    def lease(self) -> str:
        """How leases name this node in its present life."""
        return f"{self.node}#{self.epoch}"

    def beaten(self, redis_now: int) -> None:
        """A beat was answered with `redis_now` (ms)."""
        self._beaten = time.monotonic()
        self._offset = redis_now - self._beaten * 1000

    def now(self) -> int:
        """Redis TIME in ms, as well as this node knows it."""
        return int(time.monotonic() * 1000 + self._offset)

    def valid_until(self) -> int:
        return self.now() + VALID_MS

    @property
    def since_beat(self) -> float:
        """Seconds since the last good beat; infinite before the first."""
        return time.monotonic() - self._beaten

    @property
    def good(self) -> bool:
        """Whether others still take this node for alive. If not, it must deliver nothing."""
        return self.since_beat * 1000 <= ALIVE_MS
