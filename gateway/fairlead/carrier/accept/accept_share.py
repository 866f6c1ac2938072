"""The rule by which processes that accept from one listening socket get equally many connections.

`worker_loads` asks it when a connection waits. A process that has more connections than the one with the fewest, by
more than a small slack, leaves the waiting connection to that one. The process with the fewest always may accept, so
the rule alone never leaves a connection waiting. A process that could have accepted and did not look at the socket
within `PATIENCE` (it is stopped, or busy) is left out until it looks again. It is pure: loads and time are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNAVAILABLE: Final = (1 << 64) - 1
"""The load of a process that takes no links now: it has ended, drains, is full, or has used up its accept rate."""
UNLIMITED: Final = 1 << 20
"""The answer to a process that shares the socket with nobody who could accept."""
LEAST_SLACK: Final = 4
"""Connections. Processes that had to be exactly even would pass the turn on after each connection."""
SLACK_SHIFT: Final = 7
"""The slack is at least 1/128 of the mean load, so that the fullest process has less than 1.01 of it."""
PATIENCE: Final = 0.05
"""Seconds that a connection waits for the process whose turn it is. A turn of a busy event loop takes less."""
MEMORY: Final = 1.0
"""Seconds after which what was seen of another process proves nothing any more: it may have had nothing to accept."""


class AcceptShare:
    """What process `own` may accept, and what it remembers of the others for that."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._awaited: dict[int, tuple[int, float]] = {}
        """Of each process that was to accept instead of this one: how often it had looked at the socket, and since when
        it has not looked again."""

    def decide(self, loads: Sequence[int], looks: Sequence[int], now: float) -> tuple[int, int]:
        """Return how many connections this process may accept, and the process whose turn it is.

        `loads` are the connections of each process, or UNAVAILABLE, and `looks` count how often each has looked at the
        socket. Call it when a connection waits.
        """
        own = self._own
        mine = loads[own]
        others = [number for number, load in enumerate(loads) if number != own and load != UNAVAILABLE]
        slack = self._slack([loads[number] for number in others])
        first = [number for number in others if mine >= loads[number] + slack]
        awaited = {number: self._seen(number, looks[number], now) for number in first}
        self._awaited = awaited
        able = [number for number in first if now - awaited[number][1] < PATIENCE]
        if able:
            return 0, min(able, key=lambda number: (loads[number], number))
        level = [loads[number] for number in others if number not in awaited]
        return (min(level) + slack - mine if level else UNLIMITED), own

    def _slack(self, others: Sequence[int]) -> int:
        return max(LEAST_SLACK, sum(others) // len(others) >> SLACK_SHIFT) if others else LEAST_SLACK

    def _seen(self, number: int, looks: int, now: float) -> tuple[int, float]:
        before = self._awaited.get(number)
        return before if before is not None and before[0] == looks and now - before[1] < MEMORY else (looks, now)
