"""The one timer of the carrier: it detects silent connections and enforces all fixed timeouts.

One `TimerWheel` serves all connections of an event loop; whoever makes it starts and stops it. It ticks every half
second. Timeouts of one length wait in one queue in order of time, so a tick examines only those that have expired. Each
connection has a small counter that incoming data resets and the wheel increments, so a message needs no clock and no
timer, and an idle connection no memory beyond one set entry. A tick with much work does it in slices of some
milliseconds, so that the event loop can do other work in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

logger = logging.getLogger("fairlead.carrier")

T = TypeVar("T")

VISITS: Final = 4
"""Visits to a connection per silence period: silence is told between 1 and 1 + 1/4 periods after the last
byte.
"""

BUCKETS: Final = 61
"""Connections are spread over the ticks of a period; a prime, because addresses of objects have even
strides.
"""

SLICE: Final = 0.005
"""Seconds that a tick works before it lets the event loop go on: not noticed by a command, which takes some."""
STRIDE: Final = 16
"""Waits or visits between two looks at the clock: each takes from 0.2 µs to some 100 µs when a session is closed."""


class Visited(Protocol):
    """What a timer_wheel visits: it counts its own silence."""

    def visit(self) -> None: ...


class TimeoutQueue:
    """Waits of one length. An object waits at most once; discarding what does not wait is no error."""

    __slots__ = ("_clock", "_waiting", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        # Not a dict: the oldest entry of one whose head was deleted is found by passing over all that was deleted.
        self._waiting: OrderedDict[object, tuple[float, Callable[[Any], object]]] = OrderedDict()

    def add(self, waiting: T, expired: Callable[[T], object]) -> None:
        """Call `expired(waiting)` when the time is over, unless discarded. Adding again begins anew."""
        self._waiting.pop(waiting, None)
        self._waiting[waiting] = (self._clock() + self.seconds, expired)

    def discard(self, waiting: object) -> None:
        self._waiting.pop(waiting, None)

    def __contains__(self, waiting: object) -> bool:
        return waiting in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def expire(self, now: float, most: int | None = None) -> int:
        """What is due at `now` leaves the queue, oldest first, `most` of it at once; returns how many have left."""
        count = 0
        while self._waiting and count != most:
            waiting, (due, expired) = next(iter(self._waiting.items()))
            if due > now:
                break
            del self._waiting[waiting]
            count += 1
            try:
                expired(waiting)
            except Exception:
                logger.exception("a deadline's action failed; the others go on")
        return count


class TimerWheel:
    """One timer for one event loop. `silence` may change while it runs: it follows the fleet's heartbeat."""

    def __init__(
        self, *, silence: float = 75.0, tick: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.silence = silence
        self.tick = tick
        self._clock = clock
        self._deadlines: dict[float, TimeoutQueue] = {}
        self._buckets: list[set[Visited]] = [set() for _ in range(BUCKETS)]
        self._next = 0
        self._owed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._round: Iterator[None] | None = None
        """What is left to do of the last tick."""
        self._slice: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin to tick on the running event loop."""
        if self._timer is not None:
            raise RuntimeError("the timer_wheel runs already")
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """End ticking. What still waits is forgotten by its owner, not here."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None
        self._round = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def timeout_queue(self, seconds: float) -> TimeoutQueue:
        """The queue of waits of that length; the same object for the same length."""
        found = self._deadlines.get(seconds)
        if found is None:
            found = self._deadlines[seconds] = TimeoutQueue(seconds, self._clock)
        return found

    def watch(self, watched: Visited) -> None:
        self._buckets[(id(watched) >> 4) % BUCKETS].add(watched)

    def unwatch(self, watched: Visited) -> None:
        self._buckets[(id(watched) >> 4) % BUCKETS].discard(watched)

    def __len__(self) -> int:
        """Connections that are watched."""
        return sum(map(len, self._buckets))

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.tick, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._arm(loop)
        # Counted in ticks, not by the clock: a process that was stopped for a minute has bytes waiting in its
        # sockets and must read them before it may call anyone silent.
        self._owed = min(self._owed + BUCKETS * VISITS * self.tick / self.silence, BUCKETS)
        if self._round is None:
            self._round = self._work(self._clock())
            self._go_on(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """One slice of the round; the next follows when the event loop has done what else there was."""
        self._slice = None
        assert self._round is not None
        until = self._clock() + SLICE
        for _ in self._round:
            if self._clock() >= until:
                self._slice = loop.call_soon(self._go_on, loop)
                return
        self._round = None

    def _work(self, now: float) -> Iterator[None]:
        """What is due at `now`, a stride at a time."""
        for deadline in tuple(self._deadlines.values()):
            while deadline.expire(now, STRIDE) == STRIDE:
                yield
        while self._owed >= 1:
            self._owed -= 1
            bucket = self._buckets[self._next]
            self._next = (self._next + 1) % BUCKETS
            for count, watched in enumerate(tuple(bucket)):
                if watched not in bucket:
                    continue  # it has gone since the slice before
                try:
                    watched.visit()
                except Exception:
                    logger.exception("a visit failed; the others go on")
                if count % STRIDE == 0:
                    yield
