"""One command's output and input at the agent's end, bounded in both directions while links come and go.

Made by the `Outbox`; handlers write and read through it. The output that the gateway has not stored is kept and sent
again on a new link, from where the gateway's store ends; the input goes on where the handler stands, because what was
buffered is dropped and asked for again. Pure: no socket and no clock. A `Memory` is told of each change, so that the
stream outlives the process.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from fairlead.wire.messages import WINDOW, Chunk, Credit, End, EndState, Error, Event, Lane

RESULTS_GAP = Error(code="results_gap", message="a part of the results was lost behind the gateway")


class Memory(Protocol):
    """What outlives the process."""

    def keep(self, message: Chunk | End | Event) -> None:
        """Called before `message` is part of the outbox. If it raises, for a chunk or an event, it never is."""

    def took(self, command: str) -> None:
        """Its handler has read input."""

    def stored(self, command: str, count: int) -> None:
        """The gateway has stored its first `count` chunks."""

    def over(self, command: str) -> None:
        """The gateway has stored its end, or wants no more of it."""

    def told(self, event: str) -> None:
        """The gateway has stored this event."""


class CommandStream:
    """One command's output and input. `pending` is what is not yet stored, in order."""

    __slots__ = (
        "command", "ended", "held", "input", "input_ended", "input_next", "input_owed", "input_size", "lane", "memory",
        "next", "pending", "room", "window",
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
        self.room = credit
        self.pending: deque[Chunk | End] = deque()
        self.held: deque[Chunk | End] = deque()
        """The last of `pending`, which this link has no credit for: a node with a smaller window took over."""
        self.ended = False
        self.window = window
        self.input: deque[bytes] = deque()
        """Received and not yet taken by the handler: at most a window."""
        self.input_size = 0
        self.input_next = 0
        self.input_owed = 0
        self.input_ended = False

    def chunk(self, kind: str, payload: bytes) -> Chunk:
        """The next chunk. The caller has checked that `room` covers it."""
        if self.ended:
            raise ValueError(f"chunk after the end of {self.command}")
        if len(payload) > self.room:
            raise ValueError(f"chunk of {len(payload)} bytes exceeds the credit left, {self.room}")
        made = Chunk(id=self.command, n=self.next, kind=kind, payload=payload)
        if self.memory is not None:
            self.memory.keep(made)
        self.next += 1
        self.room -= len(payload)
        self.pending.append(made)
        return made

    def end(self, state: EndState, payload: bytes = b"", error: Error | None = None) -> End:
        """The end of this stream; nothing may follow. It is held, too, behind chunks that are."""
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
        """Bytes of the payload of its end; 0 until it has ended."""
        last = self.pending[-1] if self.pending else None
        return len(last.payload) if isinstance(last, End) else 0

    def replace_end(self, error: Error) -> None:
        """Its end does not fit the link: end it with `error` instead. For a link that was not sent anything yet."""
        self.pending.pop()
        self.held.clear()
        self.ended = False
        self.end("error", error=error)

    def cut(self) -> list[Chunk | End]:
        """The command was cancelled or is out of time: drop the output that has no credit, which this link was never
        sent, and let the end follow what was. Returns the end, if it has just been set free.
        """
        if not self.held:
            return []
        ended = self.held[-1] if isinstance(self.held[-1], End) else None
        first = self.held[0]
        kept = first.n if isinstance(first, Chunk) else first.total
        for message in self.held:
            self.room += _size(message)
            self.pending.pop()
        self.held.clear()
        self.next = kept
        if ended is None:
            return []
        self.ended = False
        return [self.end(ended.state, ended.payload, ended.error)]

    def granted(self, size: int) -> list[Chunk | End]:
        """The gateway takes `size` bytes more: what was held and may now be sent."""
        self.room += size
        # `room` counts all that was made, so of what is held the last ones have to wait while it is below 0.
        behind = sum(map(_size, self.held))
        released: list[Chunk | End] = []
        while self.held and self.room + behind - _size(self.held[0]) >= 0:
            behind -= _size(self.held[0])
            released.append(self.held.popleft())
        return released

    def take(self) -> tuple[bytes, Credit | None]:
        """The oldest input chunk, for the handler, and the credit to grant once half a window was taken."""
        payload = self.input.popleft()
        if self.memory is not None:
            self.memory.took(self.command)
        self.input_size -= len(payload)
        self.input_owed += len(payload)
        return payload, self.settle() if self.input_owed * 2 >= self.window else None

    def settle(self) -> Credit | None:
        """The credit for all that was taken. To be granted before the handler waits for more: the gateway may be
        waiting for the room that its next chunk needs.
        """
        grant, self.input_owed = self.input_owed, 0
        return Credit(id=self.command, bytes=grant) if grant else None

    def rewind(self) -> None:
        """The link is gone: forget the input that was not taken. The next hello asks for it again."""
        self.input_next -= len(self.input)
        self.input.clear()
        self.input_size = self.input_owed = 0
        self.input_ended = False

    def resume(self, have: int, window: int) -> bool:
        """A new link took over: chunks before `have` are stored, both windows start anew.

        False when the gateway has less than it once gave receipts for: then the stream is ended at `have`, since
        what lies between is gone on both sides.
        """
        self.window = window
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
        self.room = -sum(map(_size, self.pending))
        return True


def _size(message: Chunk | End) -> int:
    """What it takes of the credit."""
    return len(message.payload) if isinstance(message, Chunk) else 0
