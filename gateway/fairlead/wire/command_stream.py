"""One command's output and input at the agent's end. A stream outlives links, and both directions are bounded.

The `Outbox` creates it, and handlers write and read through it. Output that the gateway has not stored is kept and sent
again on a new link, beginning where the gateway's store ends. Input continues at the position that the hello of the new
link named: buffered input is dropped and comes again, and what the handler has taken by then is skipped. The module is
pure: it has no socket and no clock. A `Memory` is notified of each change, so that the stream can outlive the process.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from fairlead.wire.messages import WINDOW, Chunk, Credit, End, EndState, Error, Event, Lane

RESULTS_GAP = Error(code="results_gap", message="the gateway has lost some of the results that it had stored")


class Memory(Protocol):
    """Storage that outlives the process."""

    def keep(self, message: Chunk | End | Event) -> None:
        """Called before `message` is added to the outbox. If it raises for a chunk or an event, the message is not
        added."""

    def took(self, command: str) -> None:
        """The handler of `command` has read input."""

    def stored(self, command: str, count: int) -> None:
        """The gateway has stored the first `count` chunks of `command`."""

    def over(self, command: str) -> None:
        """The gateway has stored the end of `command`, or does not accept any more of its output."""

    def event_stored(self, event: str) -> None:
        """The gateway has stored this event."""


class CommandStream:
    """One command's output and input. `pending` holds the messages that are not yet stored, in order."""

    __slots__ = (
        "command", "credit_left", "ended", "held", "input", "input_asked", "input_ended", "input_next", "input_owed",
        "input_size", "input_taken", "lane", "memory", "next", "pending", "window",
    )  # fmt: skip

    def __init__(
        self,
        command: str,
        credit: int,
        window: int = WINDOW,
        memory: Memory | None = None,
        lane: Lane = "interactive",
    ) -> None:
        self.command = command
        self.lane = lane
        self.memory = memory
        self.next = 0
        self.credit_left = credit
        self.pending: deque[Chunk | End] = deque()
        self.held: deque[Chunk | End] = deque()
        """The last messages of `pending`, for which this link has no credit, for example because the node that took the
        command over has a smaller window."""
        self.ended = False
        self.window = window
        self.input: deque[bytes] = deque()
        """The input that was received and that the handler has not yet taken: at most one window."""
        self.input_size = 0
        self.input_next = 0
        """The number of the input chunk that comes next on this link."""
        self.input_taken = 0
        """How many input chunks the handler has taken, over all links."""
        self.input_owed = 0
        """The bytes that were received on this link and taken by the handler, and that are not granted yet."""
        self.input_ended = False
        self.input_asked = False
        """Whether a content was asked for on this link."""

    def chunk(self, kind: str, payload: bytes) -> Chunk:
        """Create the next chunk. The caller has checked that `credit_left` is sufficient for it."""
        if self.ended:
            raise ValueError(f"chunk after the end of {self.command}")
        if len(payload) > self.credit_left:
            raise ValueError(f"chunk of {len(payload)} bytes exceeds the credit left, {self.credit_left}")
        made = Chunk(id=self.command, n=self.next, kind=kind, payload=payload)
        if self.memory is not None:
            self.memory.keep(made)
        self.next += 1
        self.credit_left -= len(payload)
        self.pending.append(made)
        return made

    def end(self, state: EndState, payload: bytes = b"", error: Error | None = None) -> End:
        """Create the end of this stream, which nothing may follow. If chunks are held, the end is held behind them."""
        if self.ended:
            raise ValueError(f"{self.command} has ended already")
        made = End(id=self.command, total=self.next, state=state, payload=payload, error=error)
        if self.memory is not None:
            self.memory.keep(made)
        self.ended = True
        self.pending.append(made)
        if self.held:
            self.held.append(made)
        return made

    @property
    def result_size(self) -> int:
        """The size in bytes of the payload of the stream's end; 0 until the stream has ended."""
        last = self.pending[-1] if self.pending else None
        return len(last.payload) if isinstance(last, End) else 0

    def replace_end(self, error: Error) -> None:
        """Replace an end that is too large for the link with an end with `error`. Only valid before anything was sent
        on that link."""
        self.pending.pop()
        self.held.clear()
        self.ended = False
        self.end("error", error=error)

    def cut(self) -> list[Chunk | End]:
        """Drop the output that has no credit, after the command was cancelled or its deadline passed. That output was
        never sent on this link, so the end directly follows the output that was. Returns the end if it is now released.
        """
        if not self.held:
            return []
        ended = self.held[-1] if isinstance(self.held[-1], End) else None
        first = self.held[0]
        kept = first.n if isinstance(first, Chunk) else first.total
        for message in self.held:
            self.credit_left += _size(message)
            self.pending.pop()
        self.held.clear()
        self.next = kept
        if ended is None:
            return []
        self.ended = False
        return [self.end(ended.state, ended.payload, ended.error)]

    def granted(self, size: int) -> list[Chunk | End]:
        """Apply credit for `size` more bytes; returns the held messages that may now be sent."""
        self.credit_left += size
        # `credit_left` counts all messages that were created, so the last of the held messages must wait while it is
        # negative.
        behind = sum(map(_size, self.held))
        released: list[Chunk | End] = []
        while self.held and self.credit_left + behind - _size(self.held[0]) >= 0:
            behind -= _size(self.held[0])
            released.append(self.held.popleft())
        return released

    def received(self, payload: bytes) -> None:
        """Add the next input chunk of this link. Of a chunk that the handler took on an earlier link, only the credit
        is owed."""
        if self.input_next < self.input_taken:
            self.input_owed += len(payload)
        else:
            self.input.append(payload)
            self.input_size += len(payload)
        self.input_next += 1

    def take(self) -> tuple[bytes, Credit | None]:
        """The oldest input chunk, for the handler, and the credit to grant, if half a window has been taken."""
        payload = self.input.popleft()
        self.input_taken += 1
        if self.memory is not None:
            self.memory.took(self.command)
        self.input_size -= len(payload)
        self.input_owed += len(payload)
        return payload, self.settle() if self.input_owed * 2 >= self.window else None

    def settle(self) -> Credit | None:
        """The credit for all input that was taken. The caller grants it before the handler waits for more input,
        because the gateway may be waiting for the credit that its next chunk needs.
        """
        grant, self.input_owed = self.input_owed, 0
        return Credit(id=self.command, bytes=grant) if grant else None

    def ask(self) -> Credit | None:
        """What makes the gateway send the content of the command as its input; None if this link has asked already."""
        if self.input_asked:
            return None
        self.input_asked = True
        return Credit(id=self.command, bytes=0)

    def unsettled(self, size: int) -> None:
        """Record that `size` bytes of credit from `settle`, `take` or `ask` could not be sent: they are owed again."""
        self.input_owed += size
        if not size:
            self.input_asked = False

    def resume(self, have: int, window: int, input_from: int) -> bool:
        """Continue the stream on a new link: the chunks before `have` are stored, and the input comes from chunk
        `input_from` on, which hello named. All output is held until the caller grants the window. Input that was not
        taken is dropped: it comes again.

        Returns False if the gateway has less than it has acknowledged: the stream is then ended at `have`, because both
        sides have lost the chunks in between.
        """
        self.window = window
        self.input_next = input_from
        self.input.clear()
        self.input_size = self.input_owed = 0
        self.input_ended = self.input_asked = False
        if self.memory is not None:
            self.memory.stored(self.command, have)
        while self.pending and isinstance(first := self.pending[0], Chunk) and first.n < have:
            self.pending.popleft()
        first_unstored = self.next
        if self.pending and isinstance(first := self.pending[0], Chunk):
            first_unstored = first.n
        if first_unstored != have:
            self.pending.clear()
            self.held.clear()
            self.next = have
            self.ended = False
            self.end("error", error=RESULTS_GAP)
            return False
        self.held = deque(self.pending)
        self.credit_left = -sum(map(_size, self.pending))
        return True


def _size(message: Chunk | End) -> int:
    """The credit that `message` uses, in bytes."""
    return len(message.payload) if isinstance(message, Chunk) else 0
