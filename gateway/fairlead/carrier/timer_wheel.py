"""The one timer of the carrier: it detects silent connections and enforces all fixed timeouts.

One `TimerWheel` serves all connections of an event loop; its creator starts and stops it. It ticks every half second.
Timeouts of one length wait in one queue in order of time, so a tick examines only those that have expired. Each
connection has a small counter that incoming data resets and the wheel increments. A message therefore needs no clock
and no timer, and an idle connection no memory beyond one set entry, or none if it is found in a table of its owner. A
tick with much work does it in slices of some milliseconds, so that the event loop can do other work in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

logger = logging.getLogger("fairlead.carrier")

T = TypeVar("T")

VISITS: Final = 4
"""Visits to a connection per silence period. A connection is therefore reported as silent between 1 and 1 + 1/4 periods
after its last byte.
"""

BUCKETS: Final = 61
"""The number of sets over which the connections are spread, so that the ticks of a period share the visits. It is a
prime because the addresses of objects have even strides.
"""

SLICE: Final = 0.005
"""Seconds that a tick works before it lets the event loop continue. A command, which takes some milliseconds itself, is
not noticeably delayed."""
STRIDE: Final = 16
"""Timeouts or visits that are handled between two checks of the clock. Each takes from 0.2 µs to some 100 µs, the
latter when it closes a session."""


class Visited(Protocol):
    """An object that a timer wheel visits. It counts its own silent visits."""

    def visit(self) -> None: ...


class VisitedGroup(Protocol):
    """Objects that a timer wheel visits without an entry for each of them: their owner finds them in a table that it
    has anyway. Visiting one of them after its end has no effect.
    """

    def part(self, number: int, parts: int) -> Iterable[Visited]:
        """One of `parts` parts of the group. Each object is always in the same part."""
        ...

    @property
    def connections(self) -> int: ...


class TimeoutQueue:
    """The pending timeouts of one length. An object has at most one timeout in a queue. Discarding an object that has
    none is not an error.
    """

    __slots__ = ("_clock", "_waiting", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        # An OrderedDict, because a dict finds its oldest entry only by passing over all entries deleted before it.
        self._waiting: OrderedDict[object, tuple[float, Callable[[Any], object]]] = OrderedDict()

    def add(self, waiting: T, expired: Callable[[T], object]) -> None:
        """Call `expired(waiting)` when the time is over, unless `waiting` is discarded first. Adding it again restarts
        its timeout.
        """
        self._waiting.pop(waiting, None)
        self._waiting[waiting] = (self._clock() + self.seconds, expired)

    def discard(self, waiting: object) -> None:
        self._waiting.pop(waiting, None)

    def __contains__(self, waiting: object) -> bool:
        return waiting in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def expire(self, now: float, most: int | None = None) -> int:
        """Remove the timeouts that are due at `now`, oldest first and at most `most` of them, and call their actions.
        Returns how many were removed.
        """
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
                logger.exception("the action of a timeout failed; the others continue")
        return count


class TimerWheel:
    """One timer for one event loop. `silence`, the length of a silence period in seconds, may change while the wheel
    runs, because it follows the heartbeat interval of the fleet.
    """

    def __init__(
        self, *, silence: float = 75.0, tick: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.silence = silence
        self.tick = tick
        self._clock = clock
        self._queues: dict[float, TimeoutQueue] = {}
        self._buckets: list[set[Visited]] = [set() for _ in range(BUCKETS)]
        self._groups: list[VisitedGroup] = []
        self._next = 0
        self._owed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._round: Iterator[None] | None = None
        """The work that is left of the last tick."""
        self._slice: asyncio.Handle | None = None

    def start(self) -> None:
        """Start to tick on the running event loop."""
        if self._timer is not None:
            raise RuntimeError("the timer wheel is already running")
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop ticking. The owners of pending timeouts discard them; this method does not."""
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
        """Return the queue for timeouts of `seconds`; the same length always gives the same queue."""
        found = self._queues.get(seconds)
        if found is None:
            found = self._queues[seconds] = TimeoutQueue(seconds, self._clock)
        return found

    def watch(self, watched: Visited) -> None:
        self._buckets[(id(watched) >> 4) % BUCKETS].add(watched)

    def unwatch(self, watched: Visited) -> None:
        self._buckets[(id(watched) >> 4) % BUCKETS].discard(watched)

    def watch_group(self, group: VisitedGroup) -> None:
        self._groups.append(group)

    def unwatch_group(self, group: VisitedGroup) -> None:
        self._groups.remove(group)

    def __len__(self) -> int:
        """The number of connections that are watched."""
        return sum(map(len, self._buckets)) + sum(group.connections for group in self._groups)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.tick, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._arm(loop)
        # Silence is counted in ticks, not by the clock: a process that was suspended for a minute has bytes waiting in
        # its sockets, and must read them before it may report a connection as silent.
        self._owed = min(self._owed + BUCKETS * VISITS * self.tick / self.silence, BUCKETS)
        if self._round is None:
            self._round = self._work(self._clock())
            self._go_on(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do one slice of the round. The next slice follows when the event loop has done its other pending work."""
        self._slice = None
        assert self._round is not None
        until = self._clock() + SLICE
        try:
            for _ in self._round:
                if self._clock() >= until:
                    self._slice = loop.call_soon(self._go_on, loop)
                    return
        except Exception:
            logger.exception("a round of the timer wheel failed; the next one follows with the next tick")
        self._round = None

    def _work(self, now: float) -> Iterator[None]:
        """Do all work that is due at `now`, and yield after every `STRIDE` steps."""
        for queue in tuple(self._queues.values()):
            while queue.expire(now, STRIDE) == STRIDE:
                yield
        while self._owed >= 1:
            self._owed -= 1
            bucket = self._buckets[self._next]
            alone = (one for one in tuple(bucket) if one in bucket)  # without those that are unwatched meanwhile
            grouped = [group.part(self._next, BUCKETS) for group in self._groups]
            self._next = (self._next + 1) % BUCKETS
            for count, watched in enumerate(chain(alone, *grouped)):
                try:
                    watched.visit()
                except Exception:
                    logger.exception("a visit failed; the others continue")
                if count % STRIDE == 0:
                    yield
