"""The agent's end of a link: what was written, what is stored, and what must be sent again.

The SDK's session feeds it; it has no socket and no clock. `Outbox` lives as long as the agent's process and holds
what the gateway has not yet stored, and the input that no handler has taken yet; `AgentLink` is one connection's
conversation over it. Windows bound both directions while links come and go, so a fast command or a fast caller
can never fill memory: on a new link the output goes on where the gateway's store ends, and the input where the
handler stands, because what was buffered is dropped and asked for again. An outbox may have a `Memory`, which is
told of each change and from which the outbox of the next process is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from fairlead.errors import ProtocolViolation
from fairlead.wire.close import Close
from fairlead.wire.messages import (
    WINDOW,
    Ack,
    Chunk,
    Cmd,
    Credit,
    End,
    EndState,
    Error,
    Event,
    FromGateway,
    Lane,
    Numbered,
    Rx,
    Welcome,
)

FINISHED = 1_024
"""Ids of finished commands that are remembered: a gateway repeats a command only within one resume, which
names no more than so many."""

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


class Outbox:
    """Everything of this process that the gateway has not stored yet: streams by command id, and events."""

    __slots__ = ("_finished", "_memory", "events", "streams")

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self.streams: dict[str, CommandStream] = {}
        self.events: dict[str, Event] = {}
        self._finished: dict[str, None] = {}

    def opened(self, cmd: Cmd, window: int = WINDOW) -> CommandStream:
        """The stream of a command that was just accepted."""
        stream = self.streams[cmd.id] = CommandStream(cmd.id, cmd.credit, window, self._memory, cmd.lane)
        return stream

    def lane(self, message: Numbered) -> Lane:
        """The lane of a message: its command's, or interactive."""
        stream = self.streams.get(message.id)
        return stream.lane if stream is not None else "interactive"

    def restored(self, command: str, following: int, pending: Iterable[Chunk | End]) -> CommandStream:
        """The stream of a command of a former process; `following` is the chunk that would be next. The next
        welcome says from where on it is sent, and gives it room.
        """
        stream = self.streams[command] = CommandStream(command, 0, memory=self._memory)
        stream.next = following
        stream.pending.extend(pending)
        stream.ended = bool(stream.pending) and isinstance(stream.pending[-1], End)
        return stream

    def dropped(self, command: str) -> None:
        """The gateway does not go on with it."""
        del self.streams[command]
        self.finished(command)
        if self._memory is not None:
            self._memory.over(command)

    def occurred(self, event: Event) -> None:
        """An event of qos 1, to be sent until it is stored."""
        if self._memory is not None:
            self._memory.keep(event)
        self.events[event.id] = event

    def finished(self, command: str) -> None:
        """The command is over and must not run again if it comes once more."""
        self._finished[command] = None
        if len(self._finished) > FINISHED:
            del self._finished[next(iter(self._finished))]

    def known(self, command: str) -> bool:
        """Whether the command runs or is among the last that ran."""
        return command in self.streams or command in self._finished

    def have(self) -> dict[str, int]:
        """For hello: the next input chunk of each stream that still runs. Input not yet taken is forgotten."""
        for stream in self.streams.values():
            stream.rewind()
        return {s.command: s.input_next for s in self.streams.values() if not s.ended}

    def stored(self, message: Numbered) -> None:
        """The gateway has stored `message`: forget it."""
        if isinstance(message, Event):
            if self.events.pop(message.id, None) is not None and self._memory is not None:
                self._memory.told(message.id)
        elif not isinstance(message, Ack):
            stream = self.streams.get(message.id)
            if stream is not None and stream.pending and stream.pending[0] is message:
                stream.pending.popleft()
                over = stream.ended and not stream.pending
                if over:
                    del self.streams[message.id]
                if self._memory is not None:
                    if over:
                        self._memory.over(message.id)
                    elif isinstance(message, Chunk):
                        self._memory.stored(message.id, message.n + 1)


class AgentLink:
    """One connection: hello, welcome, then everything. Raises ProtocolViolation when the gateway breaks the order."""

    __slots__ = ("outbox", "ready", "released", "sent", "stored", "unstored", "window")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.ready = False
        self.sent = 0
        self.stored = 0
        self.unstored: deque[Numbered] = deque()
        self.window = WINDOW
        self.released: list[Numbered] = []
        """What credit has set free, to be sent by whoever gave the credit to `receive`."""

    def receive(self, message: FromGateway | None) -> Iterable[str]:
        """Take in what concerns the outbox; returns the commands whose streams may go on because of it."""
        if isinstance(message, Welcome):
            if self.ready:
                raise ProtocolViolation(Close.PROTOCOL, "welcome again: a link is welcomed once")
            self.ready = True
            self.window = message.limits.window
        elif isinstance(message, Rx):
            return self._receipt(message.s)
        elif isinstance(message, Chunk | End):
            return self._input(message)
        elif isinstance(message, Credit):
            stream = self.outbox.streams.get(message.id)
            if stream is not None:
                self.released.extend(stream.granted(message.bytes))
                return (message.id,)
        return ()

    def written(self, message: Numbered) -> None:
        """`message` goes to the socket now: it gets the next number of this link."""
        if isinstance(message, Event) and message.qos == 0:
            return
        self.sent += 1
        self.unstored.append(message)

    def resend(self, welcome: Welcome) -> tuple[list[str], list[Numbered]]:
        """After welcome: the commands that cannot go on, and what to send again, in order.

        Those are the ones that the gateway has ended meanwhile, and those whose stored results it has lost.
        """
        streams = self.outbox.streams
        lost = [command for command in streams if command not in welcome.have]
        for command in lost:
            self.outbox.dropped(command)
        again: list[Numbered] = []
        for command, stream in streams.items():
            if stream.resume(welcome.have[command], self.window):
                again.extend(stream.granted(self.window))
            else:
                lost.append(command)
                again.extend(stream.pending)
        again.extend(self.outbox.events.values())
        return lost, again

    def _receipt(self, s: int) -> Iterable[str]:
        if not self.stored <= s <= self.sent:
            raise ProtocolViolation(
                Close.PROTOCOL, f"rx {s} out of range: {self.stored} stored, {self.sent} sent on this link"
            )
        moved = set()
        for _ in range(s - self.stored):
            message = self.unstored.popleft()
            self.outbox.stored(message)
            if isinstance(message, Chunk):
                moved.add(message.id)
        self.stored = s
        return moved

    def _input(self, message: Chunk | End) -> Iterable[str]:
        stream = self.outbox.streams.get(message.id)
        if stream is None or stream.ended:
            return ()
        n = message.n if isinstance(message, Chunk) else message.total
        if n != stream.input_next or (stream.input_ended and isinstance(message, Chunk)):
            raise ProtocolViolation(
                Close.PROTOCOL, f"input {n} of {message.id} out of order: expected {stream.input_next}"
            )
        if isinstance(message, End):
            stream.input_ended = True
            return (message.id,)
        size = len(message.payload)
        if stream.input_size + size > self.window:
            raise ProtocolViolation(Close.PROTOCOL, f"input of {message.id} exceeds the window of {self.window} bytes")
        stream.input_next += 1
        stream.input_size += size
        stream.input.append(message.payload)
        return (message.id,)
