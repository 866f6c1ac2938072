"""The agent's end of a link: what was written, what is stored, and what must be sent again.

The SDK's session feeds it; it has no socket and no clock. `Outbox` lives as long as the agent's process and holds
what the gateway has not yet stored; `AgentLink` is one connection's conversation over it. A stream's window bounds
the outbox while links come and go, so a fast command can never fill memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fairlead.errors import ProtocolViolation
from fairlead.wire.close import Close
from fairlead.wire.messages import (
    WINDOW,
    Ack,
    Chunk,
    Cmd,
    End,
    EndState,
    Error,
    Event,
    FromGateway,
    Numbered,
    Rx,
    Welcome,
)


RESULTS_GAP = Error(code="results_gap", message="a part of the results was lost behind the gateway")


class OutStream:
    """What one command has produced. `pending` is what is not yet stored, in order."""

    __slots__ = ("command", "ended", "input_next", "next", "pending", "room")

    def __init__(self, command: str, credit: int, first: int = 0) -> None:
        self.command = command
        self.next = first
        self.room = credit
        self.pending: deque[Chunk | End] = deque()
        self.ended = False
        self.input_next = 0

    def chunk(self, kind: str, payload: bytes) -> Chunk:
        """The next chunk. The caller has checked that `room` covers it."""
        if self.ended:
            raise ValueError(f"chunk after the end of {self.command}")
        if len(payload) > self.room:
            raise ValueError(f"chunk of {len(payload)} bytes exceeds the credit left, {self.room}")
        made = Chunk(id=self.command, n=self.next, kind=kind, payload=payload)
        self.next += 1
        self.room -= len(payload)
        self.pending.append(made)
        return made

    def end(self, state: EndState, payload: bytes = b"", error: Error | None = None) -> End:
        """The end of this stream; nothing may follow."""
        if self.ended:
            raise ValueError(f"{self.command} has ended already")
        self.ended = True
        made = End(id=self.command, total=self.next, state=state, payload=payload, error=error)
        self.pending.append(made)
        return made

    def resume(self, have: int, window: int) -> bool:
        """A new link took over: chunks before `have` are stored, the window starts anew.

        False when the gateway has less than it once gave receipts for: the stream is then ended at `have`, because
        what lies between is gone on both sides.
        """
        while self.pending and isinstance(first := self.pending[0], Chunk) and first.n < have:
            self.pending.popleft()
        first_unstored = self.next
        if self.pending and isinstance(first := self.pending[0], Chunk):
            first_unstored = first.n
        if first_unstored != have:
            self.pending.clear()
            self.next, self.ended = have, False
            self.end("error", error=RESULTS_GAP)
            return False
        self.room = window - sum(len(m.payload) for m in self.pending if isinstance(m, Chunk))
        return True


class Outbox:
    """Everything of this process that the gateway has not stored yet: streams by command id, and events."""

    __slots__ = ("events", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, OutStream] = {}
        self.events: dict[str, Event] = {}

    def opened(self, cmd: Cmd) -> OutStream:
        """The stream of a command that was just accepted."""
        stream = self.streams[cmd.id] = OutStream(cmd.id, cmd.credit)
        return stream

    def have(self) -> dict[str, int]:
        """For hello: the next input chunk of each stream that still runs."""
        return {s.command: s.input_next for s in self.streams.values() if not s.ended}

    def stored(self, message: Numbered) -> None:
        """The gateway has stored `message`: forget it."""
        if isinstance(message, Event):
            self.events.pop(message.id, None)
        elif not isinstance(message, Ack):
            stream = self.streams.get(message.id)
            if stream is not None and stream.pending and stream.pending[0] is message:
                stream.pending.popleft()
                if stream.ended and not stream.pending:
                    del self.streams[message.id]


class AgentLink:
    """One connection: hello, welcome, then everything. Raises ProtocolViolation when the gateway breaks the order."""

    __slots__ = ("outbox", "ready", "sent", "stored", "unstored", "window")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.ready = False
        self.sent = 0
        self.stored = 0
        self.unstored: deque[Numbered] = deque()
        self.window = WINDOW

    def receive(self, message: FromGateway | None) -> None:
        """Check `message` against the conversation and take in what concerns the outbox."""
        if message is None:
            return
        if isinstance(message, Welcome):
            if self.ready:
                raise ProtocolViolation(Close.PROTOCOL, "welcome again: a link is welcomed once")
            self.ready = True
            self.window = message.limits.window
        elif isinstance(message, Rx):
            self._receipt(message.s)
        elif isinstance(message, Chunk | End):
            self._input(message)

    def written(self, message: Numbered) -> None:
        """`message` goes to the socket now: it gets the next number of this link."""
        if isinstance(message, Event) and message.qos == 0:
            return
        self.sent += 1
        self.unstored.append(message)

    def resend(self, welcome: Welcome) -> tuple[list[str], Iterator[Numbered]]:
        """After welcome: the commands that cannot go on, and what to send again, in order.

        Those are the ones that the gateway has ended meanwhile, and those whose stored results it has lost.
        """
        lost = [command for command in self.outbox.streams if command not in welcome.have]
        for command in lost:
            del self.outbox.streams[command]
        for command, stream in self.outbox.streams.items():
            if not stream.resume(welcome.have[command], self.window):
                lost.append(command)
        again: list[Numbered] = [m for stream in self.outbox.streams.values() for m in stream.pending]
        again.extend(self.outbox.events.values())
        return lost, iter(again)

    def _receipt(self, s: int) -> None:
        if not self.stored <= s <= self.sent:
            raise ProtocolViolation(
                Close.PROTOCOL, f"rx {s} out of range: {self.stored} stored, {self.sent} sent on this link"
            )
        for _ in range(s - self.stored):
            self.outbox.stored(self.unstored.popleft())
        self.stored = s

    def _input(self, message: Chunk | End) -> None:
        stream = self.outbox.streams.get(message.id)
        if stream is None:
            return
        n = message.n if isinstance(message, Chunk) else message.total
        if n != stream.input_next:
            raise ProtocolViolation(
                Close.PROTOCOL, f"input {n} of {message.id} out of order: expected {stream.input_next}"
            )
        if isinstance(message, Chunk):
            stream.input_next += 1
