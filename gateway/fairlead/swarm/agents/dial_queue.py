"""A queue of connection attempts, ordered by when they are due, of which a limited number are in progress.

The pool adds them, first attempts and retries alike, and the queue calls it for each. An attempt is in progress until
the gateway has welcomed the agent or ended the connection. If it were in progress only until the upgrade, a slow
gateway would collect more connections than it can ever welcome in time. An attempt that has to wait for others keeps
its time, so that latencies count from when it was due.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator

CONCURRENT = 256
"""Maximum number of attempts in progress in one process: more would only wait in the gateway's backlog."""
CONCURRENT_OF_ALL = 2_048
"""Maximum number of attempts in progress in all processes of a swarm."""
ANSWER_TIMEOUT = 30.0
"""Seconds after the upgrade for which an attempt without an answer is in progress: as long as an agent waits."""


def concurrent(processes: int, in_progress: int = 0) -> int:
    """The maximum number of attempts in progress in each of `processes`; `in_progress` in all of them, if it is set."""
    if in_progress:
        return max(1, in_progress // processes)
    return min(CONCURRENT, max(8, CONCURRENT_OF_ALL // processes))


class DialQueue:
    def __init__(self, dial: Callable[[int, float], Coroutine[None, None, bool]], limit: int) -> None:
        """`dial` is called with the index that was added, and the time at which it was due. It returns whether
        there is a connection, whose answer is reported to `answered`. `limit`: attempts in progress at most.
        """
        self._limit = limit
        self._dial = dial
        self._queue: list[tuple[float, int]] = []
        self._first: Iterator[tuple[float, int]] = iter(())
        self._upcoming: tuple[float, int] | None = None
        """The one of them that is in the queue."""
        self._wake = asyncio.Event()
        self._in_progress: set[asyncio.Task[None]] = set()
        self._unanswered: dict[int, asyncio.Future[None]] = {}
        """By index: done when the agent was welcomed or its attempt has failed."""

    def schedule(self, first: Iterator[tuple[float, int]]) -> None:
        """Schedule the first attempts, which are in order of time. Each is taken from the iterator when the one before
        it is due: otherwise a million of them would wait here, with a hundred bytes each.
        """
        self._first = first
        self._add_first()

    def add(self, due: float, index: int) -> None:
        """`due` by the event loop's clock."""
        heapq.heappush(self._queue, (due, index))
        self._wake.set()

    def answered(self, index: int) -> None:
        """The agent was welcomed, or its attempt has failed. Without an attempt in progress this does nothing."""
        answer = self._unanswered.pop(index, None)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _add_first(self) -> None:
        self._upcoming = next(self._first, None)
        if self._upcoming is not None:
            heapq.heappush(self._queue, self._upcoming)
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled, or until a dial raises, which none should."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    now = loop.time()
                    while self._queue and self._queue[0][0] <= now and len(self._in_progress) < self._limit:
                        attempt = heapq.heappop(self._queue)
                        if attempt is self._upcoming:
                            self._add_first()
                        due, index = attempt
                        task = group.create_task(self._attempt(index, due))
                        self._in_progress.add(task)
                        task.add_done_callback(self._ended)
                    self._wake.clear()
                    idle = not self._queue or len(self._in_progress) >= self._limit
                    try:
                        async with asyncio.timeout_at(None if idle else self._queue[0][0]):
                            await self._wake.wait()
                    except TimeoutError:
                        pass
        finally:
            self._in_progress.clear()

    async def _attempt(self, index: int, due: float) -> None:
        answer = self._unanswered[index] = asyncio.get_running_loop().create_future()
        try:
            if await self._dial(index, due):
                await asyncio.wait({answer}, timeout=ANSWER_TIMEOUT)
        finally:
            if self._unanswered.get(index) is answer:
                del self._unanswered[index]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_progress.discard(task)
        self._wake.set()
