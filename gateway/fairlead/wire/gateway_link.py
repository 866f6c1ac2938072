"""The gateway's end of a link: which messages are allowed in which phase, which are numbered, and how much each stream
may still send.

Each session has one and passes decoded messages to it. It returns the action that the session must take, and holds no
message, no socket and no clock. It uses slots and creates containers on first use to remain small, because every idle
agent has one.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, IntEnum

from fairlead.errors import ProtocolViolation
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import (
    CHUNK_LIMIT,
    WINDOW,
    Ack,
    Auth,
    Bye,
    Chunk,
    Credit,
    End,
    Event,
    FromAgent,
    Hb,
    Hello,
    Rx,
)


class LinkPhase(IntEnum):
    """The phase of the link; it only increases."""

    GREETING = 0
    CLAIMING = 1
    READY = 2
    CLOSED = 3


class Action(Enum):
    """What the session does with the message that it passed to `receive`."""

    CLAIM = "claim the agent, then welcome it"
    ANSWER = "answer the heartbeat"
    STORE = "store it, then count it as stored"
    SKIP = "numbered, but of no open stream: count it as stored, and grant back what it took"
    GRANT = "the agent takes more input"
    LEAVE = "the agent says goodbye"
    IGNORE = "nothing to do"


class Stream:
    """The state of one open command on this link. All sizes are in bytes."""

    __slots__ = (
        "credit_left", "feeding", "full", "input_consumed", "input_credit", "input_dropped", "input_ended",
        "input_next", "input_sizes", "input_spent", "input_waiting", "known", "next", "owed", "withheld",
    )  # fmt: skip

    def __init__(self, next_chunk: int, input_next: int, window: int) -> None:
        self.next = next_chunk
        self.known = False
        """True if the agent has the command, or will have read it before anything that is written from now on. The
        agent would ignore input for a command that it does not have."""
        self.credit_left = window
        """How much the agent may still send before it is granted more credit."""
        self.owed = 0
        """How much was stored and not yet granted back."""
        self.full = False
        """True while the store holds so much for a reader that no credit is granted until the reader has read on."""
        self.withheld = 0
        """How much was stored while `full` was true, and not yet granted back."""
        self.input_next = input_next
        self.input_credit = window
        self.input_ended = False
        self.input_consumed = input_next
        """The agent has consumed all input before this chunk."""
        self.input_dropped = 0
        """All input before this chunk was removed from the store."""
        self.input_sizes: deque[int] | None = None
        """The sizes of the chunks from `input_consumed` on that were sent on this link."""
        self.input_spent = 0
        """The bytes granted back that do not yet amount to a whole chunk."""
        self.feeding = False
        """True while a task sends input."""
        self.input_waiting = False
        """True if the store may have input that was not read yet."""

    def fed(self, size: int) -> None:
        """Record that an input chunk of `size` bytes was sent."""
        self.input_next += 1
        self.input_credit -= size
        if self.input_sizes is None:
            self.input_sizes = deque()
        self.input_sizes.append(size)

    def begin_feeding(self) -> bool:
        """Record that there is new input. Returns True if no task sends input now; the caller then starts one."""
        self.input_waiting = True
        if self.feeding:
            return False
        self.feeding = True
        return True

    @property
    def input_to_send(self) -> bool:
        """True if there may be input, and the agent has granted credit for it."""
        return self.input_waiting and self.input_credit > 0 and not self.input_ended

    def take_consumed(self) -> int:
        """The number of input chunks, from the first on, that the agent has consumed; 0 if there are no new ones since
        the last call."""
        if self.input_consumed <= self.input_dropped:
            return 0
        self.input_dropped = self.input_consumed
        return self.input_consumed

    def granted(self, size: int) -> None:
        """Record that the agent has consumed `size` more bytes of its input."""
        self.input_credit += size
        self.input_spent += size
        # An empty chunk is known to be consumed only when a later chunk was consumed.
        while self.input_sizes and self.input_spent and self.input_spent >= self.input_sizes[0]:
            self.input_spent -= self.input_sizes.popleft()
            self.input_consumed += 1


class GatewayLink:
    """The state machine of a link. Raises ProtocolViolation with the close code to send; after that, only `closed` may
    be called."""

    __slots__ = ("phase", "received", "stored", "streams", "window")

    def __init__(self, window: int = WINDOW) -> None:
        self.phase = LinkPhase.GREETING
        self.received = 0
        self.stored = 0
        self.streams: dict[str, Stream] | None = None
        self.window = window

    def receive(self, message: FromAgent | None) -> Action:
        """The action that `message` requires. None stands for a message that the codec ignored."""
        phase = self.phase
        if phase is not LinkPhase.READY:
            return self._greet(message)
        kind = type(message)
        if kind is Chunk:
            return self._chunk(message)  # type: ignore[arg-type]  # `kind` is its exact type; isinstance costs 3×
        if kind is Hb:
            return Action.ANSWER
        if kind is Ack or kind is Event:
            if kind is Event and message.qos == 0:  # type: ignore[union-attr]
                return Action.STORE
            self.received += 1
            if kind is Event:
                return Action.STORE
            stream = self._stream(message.id)  # type: ignore[union-attr]
            if stream is None:
                return Action.SKIP
            if stream.next and message.state == "refused":  # type: ignore[union-attr]
                why = f"{message.id} is refused after {stream.next} chunks of its output"  # type: ignore[union-attr]
                raise ProtocolViolation(CloseCode.PROTOCOL, why)
            return Action.STORE
        if kind is End:
            return self._end(message)  # type: ignore[arg-type]
        if kind is Credit:
            return self._credit(message)  # type: ignore[arg-type]
        if kind is Bye:
            return Action.LEAVE
        if message is None or kind is Auth:
            return Action.IGNORE
        raise ProtocolViolation(CloseCode.PROTOCOL, "hello again: a link says hello once")

    def _greet(self, message: FromAgent | None) -> Action:
        if self.phase is LinkPhase.CLOSED:
            return Action.IGNORE
        if isinstance(message, Hello) and self.phase is LinkPhase.GREETING:
            self.phase = LinkPhase.CLAIMING
            return Action.CLAIM
        if isinstance(message, Bye):
            return Action.LEAVE
        if isinstance(message, Hb) and self.phase is LinkPhase.CLAIMING:
            return Action.ANSWER
        if message is None:
            return Action.IGNORE
        first = "hello" if self.phase is LinkPhase.GREETING else "nothing but hb until welcome"
        raise ProtocolViolation(CloseCode.PROTOCOL, f"{type(message).__name__.lower()} out of order: expected {first}")

    def welcomed(self) -> None:
        """Record that the claim succeeded and welcome is being sent: from now on the agent may send all messages."""
        if self.phase is not LinkPhase.CLAIMING:
            raise ValueError(f"welcome in phase {self.phase.name}")
        self.phase = LinkPhase.READY

    def closed(self) -> None:
        """Record that the connection is closing: all further messages are ignored."""
        self.phase = LinkPhase.CLOSED
        self.streams = None

    def opened(self, command: str, next_chunk: int = 0, input_next: int = 0) -> Stream:
        """Open the stream of a command that was sent or resumed on this link, with a full window."""
        if self.streams is None:
            self.streams = {}
        stream = self.streams[command] = Stream(next_chunk, input_next, self.window)
        return stream

    def ended(self, command: str) -> None:
        """Remove the stream of a command that has ended. Its later messages are counted and skipped."""
        if self.streams is not None:
            self.streams.pop(command, None)
            if not self.streams:
                self.streams = None

    def dismissed(self, command: str) -> Credit | None:
        """Like `ended`, for a command that the gateway has ended and not the agent. Returns the credit to send, so that
        the agent's `end` never waits behind chunks that have no credit.
        """
        stream = self._stream(command)
        if stream is None:
            return None
        self.ended(command)
        spent = self.window - stream.credit_left
        return Credit(id=command, bytes=spent) if spent else None

    def released(self, command: str) -> Credit | None:
        """The credit to send when the agent is told to end the command. It covers everything that is stored and was not
        granted back, even if a reader of the results has not read on.
        """
        stream = self._stream(command)
        if stream is None:
            return None
        grant, stream.owed, stream.withheld = stream.owed + stream.withheld, 0, 0
        stream.credit_left += grant
        return Credit(id=command, bytes=grant) if grant else None

    def _stream(self, command: str) -> Stream | None:
        return self.streams.get(command) if self.streams is not None else None

    def stream(self, command: str) -> Stream | None:
        """The open stream of `command` on this link, if any."""
        return self._stream(command)

    def _chunk(self, chunk: Chunk) -> Action:
        self.received += 1
        size = len(chunk.payload)
        if size > CHUNK_LIMIT:
            raise ProtocolViolation(CloseCode.TOO_BIG, f"chunk of {size} bytes exceeds max {CHUNK_LIMIT}")
        stream = self._stream(chunk.id)
        if stream is None:
            return Action.SKIP
        if chunk.n != stream.next:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"chunk {chunk.n} of {chunk.id} out of order: expected {stream.next}"
            )
        if size > stream.credit_left:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"chunk of {size} bytes of {chunk.id} exceeds the credit left, {stream.credit_left}"
            )
        stream.next += 1
        stream.credit_left -= size
        return Action.STORE

    def _end(self, end: End) -> Action:
        self.received += 1
        stream = self._stream(end.id)
        if stream is None:
            return Action.SKIP
        if end.total != stream.next:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"end of {end.id} counts {end.total} chunks, {stream.next} have come"
            )
        return Action.STORE

    def _credit(self, credit: Credit) -> Action:
        stream = self._stream(credit.id)
        if stream is None:
            return Action.IGNORE
        if stream.input_credit + credit.bytes > 1 << 30:
            raise ProtocolViolation(CloseCode.PROTOCOL, f"credit of {credit.id} exceeds max {1 << 30} bytes")
        stream.granted(credit.bytes)
        return Action.GRANT

    def store(self, count: int) -> Rx:
        """Record that the next `count` numbered messages are stored; returns the receipt to send."""
        self.stored += count
        if self.stored > self.received:
            raise ValueError(f"stored {self.stored} of {self.received} messages")
        return Rx(s=self.stored)

    def withhold(self, command: str) -> None:
        """Grant no credit to the stream until `grant_withheld`, because the store holds too much for its reader."""
        stream = self._stream(command)
        if stream is not None:
            stream.full = True

    def withholds(self, command: str) -> bool:
        stream = self._stream(command)
        return stream is not None and stream.full

    def grant_withheld(self, command: str) -> Credit | None:
        """Grant credit again after the reader has read on; returns the credit for what was stored meanwhile."""
        stream = self._stream(command)
        if stream is None:
            return None
        size, stream.withheld, stream.full = stream.withheld, 0, False
        return self.repay(command, size)

    def repay(self, command: str, size: int) -> Credit | None:
        """Record that `size` bytes of the stream are stored; returns the credit to send once it amounts to half a
        window. None while the reader of the stream is too far behind: see `withhold`."""
        stream = self._stream(command)
        if stream is None:
            return None
        if stream.full:
            stream.withheld += size
            return None
        stream.owed += size
        if stream.owed * 2 < self.window:
            return None
        grant, stream.owed = stream.owed, 0
        stream.credit_left += grant
        return Credit(id=command, bytes=grant)
