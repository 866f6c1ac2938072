"""A weighted queue of messages in three lanes: control, interactive and bulk, with the weights 8, 4 and 1.

The agent's session uses it for the messages that it sends. Each lane is first in, first out, and a stream stays in one
lane, so its order is kept. Between lanes the weights decide, so that a file transfer never delays a keystroke for long
and keystrokes never stop a file transfer. The weights count messages, not bytes: a bulk message is at most one chunk of
64 KiB. The module is pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from fairlead.wire.messages import Lane

WEIGHTS: dict[Lane, int] = {"control": 8, "interactive": 4, "bulk": 1}

T = TypeVar("T")


class Lanes(Generic[T]):
    """One queue per lane. It is false if all are empty."""

    __slots__ = ("_left", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Lane, deque[T]] = {lane: deque() for lane in WEIGHTS}
        self._left = dict(WEIGHTS)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, lane: Lane, items: Iterable[T]) -> None:
        self._queues[lane].extend(items)

    def take(self) -> T:
        """Remove and return the next item. Raises IndexError if all queues are empty."""
        for _ in range(2):
            for lane, queue in self._queues.items():
                if queue and self._left[lane] > 0:
                    self._left[lane] -= 1
                    return queue.popleft()
            # Every lane that is not empty has used its share of this round.
            self._left = dict(WEIGHTS)
        raise IndexError("all lanes are empty")
