"""Who is written next when several lanes wait: control, interactive and bulk, eight to four to one.

Used by the agent's session for what it sends. Each lane is first in, first out, so a stream, which stays in one lane,
keeps its order; between lanes the weights decide, so that a file never holds up a keystroke, and keystrokes never
stop a file. By messages, not bytes: a bulk message is at most one chunk of 64 KiB. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from fairlead.wire.messages import Lane

WEIGHTS: dict[Lane, int] = {"control": 8, "interactive": 4, "bulk": 1}

T = TypeVar("T")


class Lanes(Generic[T]):
    """A queue for each lane. Falsy when all are empty."""

    __slots__ = ("_left", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Lane, deque[T]] = {lane: deque() for lane in WEIGHTS}
        self._left = dict(WEIGHTS)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, lane: Lane, items: Iterable[T]) -> None:
        self._queues[lane].extend(items)

    def take(self) -> T:
        """The next in turn. Raises IndexError when all are empty."""
        for _ in range(2):
            for lane, queue in self._queues.items():
                if queue and self._left[lane] > 0:
                    self._left[lane] -= 1
                    return queue.popleft()
            # Whoever waits has had its turns of this round.
            self._left = dict(WEIGHTS)
        raise IndexError("all lanes are empty")
