"""The attempts of a worker's agents to open their links: when each was due, and how long to wait before the next one.

`agent_pool` reports to it, and the agents keep their `UnwelcomedLinks` here. What only an agent that connects needs is
kept here and not by the agent, so that an idle agent has no field for it. Times are given, and nothing here connects.
"""

from __future__ import annotations

import random
from array import array

from fairlead.carrier.listener import Connection
from fairlead.wire.retry import RetryPolicy

MOST_RETRIES = 255
"""What one byte can count. The delays have stopped growing long before."""


class UnwelcomedLinks:
    """What the agents of a pool need only from hello to welcome, by the agents' numbers."""

    def __init__(self) -> None:
        self.asked: dict[int, float] = {}
        """When hello was sent, or when a half-open agent began to read."""
        self.next: dict[int, Connection] = {}
        """The next connections of agents that move, on which they have said hello."""


class Attempts:
    def __init__(self, agents: int) -> None:
        self.policy = RetryPolicy()
        """As the gateway has sent it."""
        self.moving: set[int] = set()
        """The agents that were drained and have an attempt due or under way while their old links are still open."""
        self._due: dict[int, float] = {}
        """When the present attempt of each was due."""
        self._named: dict[int, float] = {}
        """The delay in ms that a bye has specified."""
        self._conns = array("I", bytes(4 * agents))
        """How many attempts each has made: what hello calls `conn`."""
        self._retries = bytearray(agents)
        """The attempts since the last link that lived long enough."""

    def begin(self, index: int, due: float) -> None:
        self._conns[index] += 1
        self._due[index] = due

    def conn(self, index: int) -> int:
        """Which attempt the present one is, from 1."""
        return self._conns[index]

    def due(self, index: int) -> float | None:
        """When the present attempt was due; None if there is none."""
        return self._due.get(index)

    def over(self, index: int) -> float | None:
        """The present attempt is over. Returns when it was due."""
        return self._due.pop(index, None)

    def name_delay(self, index: int, wait: float) -> None:
        """The gateway has named the delay before the next attempt, in ms."""
        self._named[index] = wait

    def delay(self, index: int, wait: float | None) -> float:
        """Count the next attempt, and return the ms until then: `wait`, or what the gateway has named, or what the
        policy draws."""
        named = self._named.pop(index, None)
        if wait is None:
            wait = named
        retries = self._retries[index]
        self._retries[index] = min(retries + 1, MOST_RETRIES)
        return self.policy.delay(retries, random.random()) if wait is None else wait

    def settle(self, index: int) -> None:
        """The last link has lived long enough: the delays start again with the first one."""
        self._retries[index] = 0
