"""Visits each agent of a pool in turn, twice in each heartbeat interval: one timer for all of them.

The visits also look for silent connections, so that the carrier's timer wheel need not know every connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from fairlead.carrier.timer_wheel import VISITS, TimerWheel, Visited
from fairlead.swarm.agents.simulated_agent import SimulatedAgent

TICK = 0.05
"""Seconds between two runs of the timer. With a longer interval, heartbeats would come in bursts, which no real fleet
sends."""
ROUND = 5
"""Rounds of visits in a silence period of 2.5 heartbeat intervals. In all but the last of them connections are visited:
`VISITS` times in a silence period, as by the timer wheel."""


class UncheckedTimerWheel(TimerWheel):
    """A timer wheel for timeouts only. It merely counts the connections, because `Visits` visits them."""

    def __init__(self) -> None:
        super().__init__()
        self._connections = 0

    def watch(self, watched: Visited) -> None:
        self._connections += 1

    def unwatch(self, watched: Visited) -> None:
        self._connections -= 1

    def __len__(self) -> int:
        return self._connections


class Visits:
    def __init__(
        self, agents: Sequence[SimulatedAgent], heartbeat: Callable[[], float], late: Callable[[float], None]
    ) -> None:
        """`heartbeat` returns the current interval, and `late` is called with the lateness of each run, in seconds."""
        self._agents = agents
        self._heartbeat = heartbeat
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._next, self._owed, self._next_at = 0, 0.0, 0.0
        self._rounds = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._next_at = time.monotonic() + TICK
        self._timer = self._loop.call_at(self._next_at, self._visit_next)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _visit_next(self) -> None:
        now = time.monotonic()
        self._late(max(0.0, now - self._next_at))
        self._next_at = max(self._next_at + TICK, now)
        self._timer = self._loop.call_at(self._next_at, self._visit_next)
        # Each agent is visited twice in each heartbeat interval, so that none stays silent for longer than one.
        self._owed = min(self._owed + len(self._agents) * TICK / (self._heartbeat() / 2), len(self._agents))
        while self._owed >= 1:
            self._owed -= 1
            self._agents[self._next].visit(now, listening=self._rounds % ROUND < VISITS)
            self._next += 1
            if self._next == len(self._agents):
                self._next, self._rounds = 0, self._rounds + 1
