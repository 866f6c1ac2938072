"""The calls that wait to be sent to Redis: one queue for each priority, and the choice of the next batch.

Only the pipeliner uses it; the callers of the pipeliner choose the priorities. Every batch takes calls from each queue
in the order of the priorities, up to the limit of that queue for one batch. So a heartbeat never waits behind a list of
all agents, no priority starves a lower one, and the size of the replies to a batch is bounded before it is sent. Calls
of one priority keep the order of their submission; between two priorities there is no order. It does no I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.reply import Reply
from fairlead.store.script import Script

EXPECTED_REPLY = 128
"""Default for the expected bytes of a reply: a status, a number or a few short fields."""


class Priority(IntEnum):
    """The order in which a batch takes calls. The calls of one priority share one queue and its limits."""

    CONTROL = 0
    """Calls that keep the node a member of the fleet: its heartbeats, the table of nodes, its inbox."""
    RESULTS = 1
    """What agents have sent (acks, output, ends), the calls that follow an end, and doorbells for other nodes."""
    COMMANDS = 2
    """Calls that callers and agents wait for: posts, deliveries, input, reads of results, deadlines."""
    BULK = 3
    """The calls of commands of the lane `bulk`, such as those of a run on thousands of agents: posts, deliveries, what
    their agents have sent; and deliveries of commands that were open before the link was."""
    BACKGROUND = 4
    """Calls that may be slow: lists, claims and takeovers, comparisons of links with rows, the index sweep."""

    @property
    def label(self) -> str:
        """The name of the priority in metrics and messages."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many calls of one priority may wait, and how many one batch takes. Bytes are those of requests, except in
    `back`. With `most`, a batch takes up to so many calls after slow batches, see `Backlog.answered`."""

    waiting: int
    waiting_bytes: int
    batch: int
    batch_bytes: int
    back: int
    """The limit of the expected bytes of the replies to one batch. A call that expects more is the only one of its
    priority in its batch."""
    most: int = 0


MOST_BULK: Final = 64
"""The most calls of priority BULK in one batch."""
MOST_BACKGROUND: Final = 32
"""The most calls of priority BACKGROUND in one batch. They take about 2 ms, and what follows from them in this process
some 5 ms: much less than SLOW, so that no batch is slow because the one before it took many."""
LIMITS = {
    # A node has about a dozen of these under way: seven calls for each heartbeat, and one for each unknown node.
    Priority.CONTROL: QueueLimits(1_024, 4 << 20, 32, 1 << 20, 1 << 20),
    # One append is under way for each link that has sent something, and a node holds about 18,000 links.
    Priority.RESULTS: QueueLimits(20_000, 64 << 20, 128, 4 << 20, 1 << 20),
    # About 64 full batches, which are a tenth of a second of work: a caller that queues more gets an error.
    Priority.COMMANDS: QueueLimits(8_192, 64 << 20, 128, 4 << 20, 4 << 20),
    # A few at a time: what follows from the replies is done in one turn of the event loop, which all others wait for.
    # As many may wait as results, because each link may have one under way.
    Priority.BULK: QueueLimits(20_000, 64 << 20, 32, 1 << 20, 1 << 20, MOST_BULK),
    # An eighth of what a batch takes of results and of commands, so it delays them by about half a millisecond.
    Priority.BACKGROUND: QueueLimits(8_192, 16 << 20, 16, 1 << 20, 1 << 20, MOST_BACKGROUND),
}
SLOW: Final = 0.02
"""Seconds. A batch that takes longer was delayed by more than its calls of the lower priorities: this process has much
else to do, or has the CPU only now and then."""


_CONTROL, _BACKGROUND = Priority.CONTROL, Priority.BACKGROUND


class Call:
    """One call, from its submission to its result. `expected` is the expected size of its reply in bytes.

    `count` is the number of commands packed in it, or whose work it does. `replies` is None for a call of one command,
    whose result is the reply; for others it holds the replies so far, and is the result once it is complete. `since` is
    the time of the event loop at which the call began to wait. `told` says that somebody outside is told what the reply
    says, so that it must last (see `confirmer`). `must_fit` says that it is run by a script if the server has no memory
    for it.
    """

    __slots__ = (
        "count", "expected", "future", "must_fit", "packed", "priority", "repeated", "replies", "script", "since",
        "told",
    )  # fmt: skip

    def __init__(
        self,
        future: asyncio.Future[Any],
        packed: bytes,
        script: Script | None,
        priority: Priority,
        expected: int,
        count: int = 1,
        replies: list[Reply | FairleadError] | None = None,
    ) -> None:
        self.future = future
        self.packed = packed
        self.script = script
        self.priority = priority
        self.expected = expected
        self.count = count
        self.replies = replies
        self.repeated = self.must_fit = False
        self.since = 0.0
        self.told = _CONTROL < priority < _BACKGROUND

    def fail(self, error: FairleadError, cause: BaseException | None = None) -> None:
        if self.future.done():
            return
        error.__cause__ = cause
        self.future.set_exception(error)
        if isinstance(error, BusUnavailable):
            # Marks the exception as retrieved, so that asyncio does not log it when nobody awaits the future: such
            # calls would fill the log during an outage. A bug (ScriptError) is logged.
            self.future.exception()


class _Queue:
    __slots__ = ("bounds", "bytes", "calls", "takes")

    def __init__(self, bounds: QueueLimits) -> None:
        self.bounds = bounds
        self.calls: deque[Call] = deque()
        self.bytes = 0
        self.takes = bounds.batch
        """How many calls the next batch takes."""


class Backlog:
    """The queues of all priorities. It is falsy when no call waits."""

    def __init__(self) -> None:
        self._queues = tuple(_Queue(LIMITS[priority]) for priority in Priority)
        self._growing = tuple(queue for queue in self._queues if queue.bounds.most)

    def __len__(self) -> int:
        return sum(len(queue.calls) for queue in self._queues)

    def __bool__(self) -> bool:
        for queue in self._queues:  # noqa: SIM110  # a generator takes twice as long, and each batch asks three times
            if queue.calls:
                return True
        return False

    def waiting(self, priority: Priority) -> int:
        return len(self._queues[priority].calls)

    def answered(self, seconds: float) -> None:
        """Note how long the last batch took. While calls of the two lowest priorities wait, a slow batch is followed by
        one that takes twice as many of them: a busy process that has one batch in each turn of its event loop, or in
        each of its turns on the CPU, would otherwise accept links faster than it claims their agents."""
        for queue in self._growing:
            grows = seconds > SLOW and queue.calls
            queue.takes = min(queue.takes * 2, queue.bounds.most) if grows else queue.bounds.batch

    def put(self, call: Call) -> str:
        """Add `call` to the queue of its priority. Return "", or the reason if the queue is full."""
        queue = self._queues[call.priority]
        bounds, size = queue.bounds, len(call.packed)
        if len(queue.calls) >= bounds.waiting or queue.bytes + size > bounds.waiting_bytes:
            return (
                f"backlog full: {len(queue.calls)} calls of {queue.bytes} bytes wait at priority "
                f"{call.priority.label} (limits {bounds.waiting} and {bounds.waiting_bytes})"
            )
        queue.calls.append(call)
        queue.bytes += size
        return ""

    def put_back(self, calls: Iterable[Call]) -> None:
        """Put calls that were taken but not executed at the front of their queues, in their order."""
        for call in reversed(list(calls)):
            queue = self._queues[call.priority]
            queue.calls.appendleft(call)
            queue.bytes += len(call.packed)

    def take_overdue(self, before: float) -> list[Call]:
        """Remove and return the calls that have waited since before the time `before`."""
        overdue: list[Call] = []
        for queue in self._queues:
            calls = queue.calls
            while calls and calls[0].since < before:
                queue.bytes -= len(calls[0].packed)
                overdue.append(calls.popleft())
        return overdue

    def take(self) -> deque[Call]:
        """Remove and return the next batch: calls of each priority, in the order of the priorities."""
        batch: deque[Call] = deque()
        for queue in self._queues:
            calls = queue.calls
            if not calls:
                continue
            bounds = queue.bounds
            most, most_bytes, most_back = queue.takes, bounds.batch_bytes, bounds.back
            count = size = back = 0
            while calls and count < most:
                call = calls[0]
                size += len(call.packed)
                back += call.expected
                if count and (size > most_bytes or back > most_back or count + call.count > most):
                    size -= len(call.packed)
                    break
                batch.append(calls.popleft())
                count += call.count
            queue.bytes -= size
        return batch

    def fail_all(self, why: str, cause: BaseException | None = None) -> None:
        """Remove all waiting calls, which fail as unavailable for the reason `why`."""
        for queue in self._queues:
            calls, queue.calls, queue.bytes = queue.calls, deque(), 0
            for call in calls:
                call.fail(BusUnavailable(why), cause)


class ExpectedSize:
    """A moving average of the size of one kind of reply in bytes. It rises fast and falls slowly.

    Code that reads replies whose size depends on user data keeps one, so that a batch can be bounded by the size of its
    replies: the expected size of a batch is the number of calls times this size.
    """

    __slots__ = ("size",)

    def __init__(self, size: int = EXPECTED_REPLY) -> None:
        self.size = size

    def saw(self, size: int) -> None:
        more = size - self.size
        self.size += more >> 2 if more > 0 else more // 16
