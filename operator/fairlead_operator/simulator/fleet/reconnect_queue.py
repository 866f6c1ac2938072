"""The agents without a link, by the second of their next attempt. They are counted, not stored individually.

A cell of the queue holds the agents with the same number of failed attempts and the same wait: its number is
`retry * AGES + wait`, the wait being that at the next attempt. `simulation` takes what is due and puts back what
failed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead_operator.simulator.arrays import Counts, Shares, draw_without_return
from fairlead_operator.simulator.fleet import pauses

RETRIES = 11
"""Numbers of retries that are distinguished: from the tenth on, the policy's ceiling no longer grows."""
AGES = 601
"""Seconds of waiting that are distinguished; the last stands for all longer waits."""
SLOTS = pauses.LONGEST + 1
"""Seconds of the ring: the longest pause, and the present second."""


@dataclass(frozen=True, slots=True)
class DueAgents:
    """Agents that make an attempt in this second: the numbers of their cells, and how many are in each."""

    cells: Counts
    numbers: Counts

    @property
    def total(self) -> int:
        return int(self.numbers.sum())

    def drawn(self, rng: np.random.Generator, number: int) -> tuple[DueAgents, DueAgents]:
        """`number` of them, drawn at random, and the others."""
        taken = draw_without_return(rng, self.numbers, number)
        return DueAgents(self.cells, taken), DueAgents(self.cells, self.numbers - taken)


class ReconnectQueue:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ring = np.zeros((SLOTS, RETRIES * AGES), np.int64)
        self.waiting = 0
        """All agents in the queue."""
        self.waits = np.zeros(AGES, np.int64)
        """Agents that have got a link after so many seconds of waiting."""

    def counted(self) -> int:
        """The number of all agents in the queue, counted from the cells."""
        return int(self._ring.sum())

    def due(self, now: int) -> int:
        """Agents that are due in second `now`."""
        return int(self._ring[now % SLOTS].sum())

    def take_due(self, now: int, newcomers: int) -> DueAgents:
        """Those that are due in second `now`, and `newcomers` that try for the first time. They are in the queue no
        longer."""
        slot = self._ring[now % SLOTS]
        cells = np.flatnonzero(slot)
        numbers = slot[cells]
        slot[cells] = 0
        self.waiting -= int(numbers.sum())
        if newcomers:  # no queued agent is in cell 0: each has waited at least a second
            cells, numbers = np.append(cells, 0), np.append(numbers, newcomers)
        return DueAgents(cells, numbers)

    def linked(self, agents: DueAgents) -> None:
        """Records that these agents have got a link."""
        np.add.at(self.waits, agents.cells % AGES, agents.numbers)

    def lost(self, now: int, number: int, first: int) -> None:
        """Adds agents that have lost their link; `first` is the ceiling of their first pause, in seconds."""
        pause = pauses.after_loss(first)
        cells = AGES + np.arange(len(pause))  # their first retry, after these waits
        self._ring[(now + np.arange(len(pause))) % SLOTS, cells] += self._rng.multinomial(number, pause)
        self.waiting += number

    def refused(self, now: int, agents: DueAgents, most: int) -> None:
        """Puts back agents that a node refused, with a Retry-After of up to `most` seconds."""
        self._schedule(now, agents, pauses.after_retry_after(most))

    def unanswered(self, now: int, agents: DueAgents) -> None:
        """Puts back agents for which there was no node to connect to."""
        retries = agents.cells // AGES
        for retry in np.unique(retries).tolist():
            same = retries == retry
            self._schedule(now, DueAgents(agents.cells[same], agents.numbers[same]), pauses.after_failure(retry))

    def withdraw(self, number: int) -> None:
        """Removes waiting agents, drawn at random, that no longer want a link."""
        at = np.flatnonzero(self._ring)
        cells = self._ring.reshape(-1)
        cells[at] -= draw_without_return(self._rng, cells[at], number)
        self.waiting -= number

    def _schedule(self, now: int, agents: DueAgents, pause: Shares) -> None:
        some = agents.numbers > 0
        cells, numbers = agents.cells[some], agents.numbers[some]
        if not len(cells):
            return
        seconds = np.flatnonzero(pause)
        drawn = self._rng.multinomial(numbers, pause[seconds])
        retries = np.minimum(cells // AGES + 1, RETRIES - 1)[:, None]
        waits = np.minimum(cells[:, None] % AGES + seconds, AGES - 1)
        slots = np.broadcast_to((now + seconds) % SLOTS, drawn.shape)
        np.add.at(self._ring, (slots, retries * AGES + waits), drawn)
        self.waiting += int(numbers.sum())
