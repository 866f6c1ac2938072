"""What waits to be sent to the server: one queue for each priority, and the choice of the next batch from them.

Used by the pipeliner alone; the priorities are named by whoever submits a call. Every batch takes from each queue in
the order of the priorities, up to that queue's bound for one batch: so a beat never waits behind a list of all agents,
no priority can keep a lower one waiting for ever, and what one batch brings back is bounded before it is asked for.
Within one priority calls keep the order of their submission; between two priorities there is no order. It does no I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fairlead.errors import BusUnavailable, FairleadError
from fairlead.store.reply import Reply
from fairlead.store.script import Script

EXPECTED_REPLY = 128
"""Bytes that a reply is expected to have unless the caller says otherwise: a status, a number, a few short fields."""


class Priority(IntEnum):
    """Which calls go first, and which of them share a bound."""

    CONTROL = 0
    """The life of the node itself: its beats, the table of nodes, its inbox."""
    RESULTS = 1
    """What agents have sent: acks, output, ends, and what an end brings with it; rings at other nodes."""
    COMMANDS = 2
    """What callers and agents wait for: posts, deliveries, input, reading of results, deadlines."""
    BACKGROUND = 3
    """What may take its time: lists, claims and takeovers, comparisons of links with rows, the sweep of the index."""

    @property
    def label(self) -> str:
        """As metrics and messages name it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much of one priority may wait, and how much of it goes into one batch. Bytes but `back` are of requests."""

    waiting: int
    waiting_bytes: int
    batch: int
    batch_bytes: int
    back: int
    """Bytes of replies that one batch may be expected to bring. A call that expects more goes without others of its
    priority."""


LIMITS = {
    # A node has some dozen of these under way: seven calls a beat, and one for each node that it did not know.
    Priority.CONTROL: QueueLimits(1_024, 4 << 20, 32, 1 << 20, 1 << 20),
    # One append is under way for each link that has sent something, and a node holds some 18,000 links.
    Priority.RESULTS: QueueLimits(20_000, 64 << 20, 128, 4 << 20, 1 << 20),
    # Some 64 full batches, a tenth of a second of work: whoever queues more should hear of it.
    Priority.COMMANDS: QueueLimits(8_192, 64 << 20, 128, 4 << 20, 4 << 20),
    # An eighth of what a batch takes from the two above: what it makes them wait is about half a millisecond.
    Priority.BACKGROUND: QueueLimits(8_192, 16 << 20, 16, 1 << 20, 1 << 20),
}


class Call:
    """One call, from its submission to its answer. `expected`: bytes that its reply is expected to have.

    `count`: the commands that are packed in it. `replies`: None for the usual one command, whose reply is the answer;
    else the replies to its commands so far, which are the answer when all are there. `since`: the time of the loop at
    which it began to wait.
    """

    __slots__ = ("count", "expected", "future", "packed", "priority", "repeated", "replies", "script", "since")

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
        self.repeated = False
        self.since = 0.0

    def fail(self, error: FairleadError, cause: BaseException | None = None) -> None:
        if self.future.done():
            return
        error.__cause__ = cause
        self.future.set_exception(error)
        if isinstance(error, BusUnavailable):
            # An abandoned call must not fill the log during an outage; a defect (ScriptError) should.
            self.future.exception()


class _Queue:
    __slots__ = ("bounds", "bytes", "calls")

    def __init__(self, bounds: QueueLimits) -> None:
        self.bounds = bounds
        self.calls: deque[Call] = deque()
        self.bytes = 0


class Backlog:
    """Falsy when nothing waits."""

    def __init__(self) -> None:
        self._queues = tuple(_Queue(LIMITS[priority]) for priority in Priority)

    def __len__(self) -> int:
        return sum(len(queue.calls) for queue in self._queues)

    def __bool__(self) -> bool:
        return any(queue.calls for queue in self._queues)

    def waiting(self, priority: Priority) -> int:
        return len(self._queues[priority].calls)

    def put(self, call: Call) -> str:
        """Let `call` wait; why it may not, "" when it does."""
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
        """`calls` were taken and not executed: they go before the others of their priority, in their order."""
        for call in reversed(list(calls)):
            queue = self._queues[call.priority]
            queue.calls.appendleft(call)
            queue.bytes += len(call.packed)

    def take_overdue(self, before: float) -> list[Call]:
        """All that have waited since before that time."""
        overdue: list[Call] = []
        for queue in self._queues:
            calls = queue.calls
            while calls and calls[0].since < before:
                queue.bytes -= len(calls[0].packed)
                overdue.append(calls.popleft())
        return overdue

    def take(self) -> deque[Call]:
        """The next batch: some of each priority that waits, the first priority first."""
        batch: deque[Call] = deque()
        for queue in self._queues:
            calls = queue.calls
            if not calls:
                continue
            bounds = queue.bounds
            most, most_bytes, most_back = bounds.batch, bounds.batch_bytes, bounds.back
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

    def clear(self) -> Iterator[Call]:
        """Everything that waits, and nothing waits any more."""
        for queue in self._queues:
            calls, queue.calls, queue.bytes = queue.calls, deque(), 0
            yield from calls


class ExpectedSize:
    """Bytes that the replies of one kind have on the average of late: it rises fast and falls slowly.

    Kept by whoever reads replies whose size depends on what users sent, so that a batch is bounded by what it will
    bring: the sum of a batch is its count times this.
    """

    __slots__ = ("size",)

    def __init__(self, size: int = EXPECTED_REPLY) -> None:
        self.size = size

    def saw(self, size: int) -> None:
        more = size - self.size
        self.size += more >> 2 if more > 0 else more // 16
