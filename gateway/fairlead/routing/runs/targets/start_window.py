"""How many targets of a run may be started and unanswered at once, so that a run keeps no queue in the fleet.

The driver of a run owns one, and asks it before it starts targets. It is pure: it does no I/O and reads no clock.

What a run starts faster than nodes, Redis and agents answer waits there, in queues that everybody else's commands pass
through too: with 2,000 commands of a run under way, an echo took more than three times as long as with a window of 128,
and the run ended only a fifth sooner (decision 0088). So a start counts until its target has ended, and no longer than
AGE: how long a command takes is no measure of a queue, and as many of those that take long are under way as the run's
`concurrency` says.

Where agents are far away, more are under way without any queue. The quickest lot so far says how far: the window has
what RATE starts a second are in that time.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

LEAST: Final = 128
"""As many as both cores of a small machine answer in 25 ms. With 64, an echo takes three quarters of the time, and a
target a tenth more CPU, since less is done together."""
AGE: Final = 0.1
"""Seconds after which a start counts no more."""
RATE: Final = 5_000
"""Starts a second that the window allows where agents are far away: more than one node drives."""
LOT: Final = 64
"""Targets to be started together, if there are as many: a step costs Redis and the node a fixed amount besides what it
stores."""


class Lot:
    """Targets that were started together."""

    __slots__ = ("at", "count", "measured", "open")

    def __init__(self, count: int, at: float) -> None:
        self.count = count
        self.open = count
        """How many of them still count."""
        self.at = at
        self.measured = False
        """Whether half of them were answered."""


class StartWindow:
    def __init__(self) -> None:
        self._lots: deque[Lot] = deque()
        self._open = 0
        self._quickest: float | None = None
        """The least time in which half of a lot was answered, at most AGE; None while that is not known of any."""

    @property
    def size(self) -> int:
        quickest = self._quickest or 0.0
        return max(LEAST, round(RATE * quickest))

    def started(self, count: int, now: float) -> Lot:
        lot = Lot(count, now)
        self._lots.append(lot)
        self._open += count
        return lot

    def answered(self, lot: Lot, now: float) -> None:
        """An agent has done what this target asks."""
        if not lot.open:
            return  # it does not count any more
        lot.open -= 1
        self._open -= 1
        if not lot.measured and lot.open <= lot.count // 2:
            lot.measured = True
            self._measured(now - lot.at)

    def released(self, lot: Lot) -> None:
        """A target of this lot waits for its agent, or has ended without it: this says nothing of how far others
        are."""
        if lot.open:
            lot.count -= 1
            lot.open -= 1
            self._open -= 1

    def room(self, now: float) -> int:
        """How many targets may start now."""
        self._forget(now)
        return max(0, self.size - self._open)

    def until_older(self, now: float) -> float:
        """Seconds until the oldest start that counts does so no more; infinity if none counts."""
        self._forget(now)
        return self._lots[0].at + AGE - now if self._lots else inf

    def _forget(self, now: float) -> None:
        lots = self._lots
        while lots and (not lots[0].open or now - lots[0].at >= AGE):
            lot = lots.popleft()
            if lot.open > lot.count // 2:
                self._measured(AGE)
            self._open -= lot.open
            lot.open = 0

    def _measured(self, seconds: float) -> None:
        self._quickest = min(seconds, AGE if self._quickest is None else self._quickest)
