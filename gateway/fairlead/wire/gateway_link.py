"""The gateway's end of a link: which message may come when, what is numbered, and what each stream may still send.

One per session, fed with decoded messages; it returns what kind of act the session owes and keeps no message, no
socket and no clock. Slotted and small, since an idle agent holds one: containers are made on first use.
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
    """Where the conversation stands; it only ever grows."""

    GREETING = 0
    CLAIMING = 1
    READY = 2
    CLOSED = 3


class Action(Enum):
    """What the session does with the message that it just gave to `receive`."""

    CLAIM = "claim the agent, then welcome it"
    ANSWER = "answer the heartbeat"
    STORE = "store it, then count it as stored"
    SKIP = "numbered, but of no open stream: count it as stored, and grant back what it took"
    GRANT = "the agent takes more input"
    LEAVE = "the agent says goodbye"
    IGNORE = "nothing to do"


class Stream:
    """One open command as this link sees it. All sizes in bytes."""

    __slots__ = (
        "feeding", "full", "input_consumed", "input_dropped", "input_ended", "input_news", "input_next", "input_room",
        "input_sizes", "input_spent", "known", "next", "owed", "room", "withheld",
    )  # fmt: skip

    def __init__(self, next_chunk: int, input_next: int, window: int) -> None:
        self.next = next_chunk
        self.known = False
        """The agent has the command, or it is before whatever is written now: input for another would be ignored."""
        self.room = window
        """What the agent may still send before it is granted more."""
        self.owed = 0
        """What was stored and not yet granted back."""
        self.full = False
        """The store holds so much for a reader that no more is granted until he has come on."""
        self.withheld = 0
        """What was stored meanwhile."""
        self.input_next = input_next
        self.input_room = window
        self.input_ended = False
        self.input_consumed = input_next
        """All input before this chunk was consumed by the agent."""
        self.input_dropped = 0
        """All input before this chunk was dropped from the store."""
        self.input_sizes: deque[int] | None = None
        """Of the chunks from `input_consumed` on, as they were sent on this link."""
        self.input_spent = 0
        """Bytes granted back that do not yet make up a whole chunk."""
        self.feeding = False
        """Somebody sends input right now."""
        self.input_news = False
        """There may be input that was not read yet."""

    def fed(self, size: int) -> None:
        """An input chunk of `size` bytes was sent."""
        self.input_next += 1
        self.input_room -= size
        if self.input_sizes is None:
            self.input_sizes = deque()
        self.input_sizes.append(size)

    def begin_feeding(self) -> bool:
        """There is new input. True if no task sends input now: the caller starts one."""
        self.input_news = True
        if self.feeding:
            return False
        self.feeding = True
        return True

    @property
    def input_to_send(self) -> bool:
        """True if there may be input, and the agent has granted credit for it."""
        return self.input_news and self.input_room > 0 and not self.input_ended

    def take_consumed(self) -> int:
        """The number of input chunks, from the first on, that the agent has consumed; 0 if there are no new ones since
        the last call."""
        if self.input_consumed <= self.input_dropped:
            return 0
        self.input_dropped = self.input_consumed
        return self.input_consumed

    def granted(self, size: int) -> None:
        """The agent has consumed `size` bytes more of its input."""
        self.input_room += size
        self.input_spent += size
        # An empty chunk is known to be consumed only when something behind it was.
        while self.input_sizes and self.input_spent and self.input_spent >= self.input_sizes[0]:
            self.input_spent -= self.input_sizes.popleft()
            self.input_consumed += 1


class GatewayLink:
    """The state machine. Raises ProtocolViolation with the close code to send; afterwards only `close` is legal."""

    __slots__ = ("phase", "received", "stored", "streams", "window")

    def __init__(self, window: int = WINDOW) -> None:
        self.phase = LinkPhase.GREETING
        self.received = 0
        self.stored = 0
        self.streams: dict[str, Stream] | None = None
        self.window = window

    def receive(self, message: FromAgent | None) -> Action:
        """The act that `message` asks for. None stands for a message that the codec ignored."""
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
        """The claim succeeded and welcome is being sent: from now on the agent may send everything."""
        if self.phase is not LinkPhase.CLAIMING:
            raise ValueError(f"welcome in phase {self.phase.name}")
        self.phase = LinkPhase.READY

    def closed(self) -> None:
        """The connection is closing: whatever still comes is ignored."""
        self.phase = LinkPhase.CLOSED
        self.streams = None

    def opened(self, command: str, next_chunk: int = 0, input_next: int = 0) -> Stream:
        """A command was sent, or taken up again, on this link; its window is full again."""
        if self.streams is None:
            self.streams = {}
        stream = self.streams[command] = Stream(next_chunk, input_next, self.window)
        return stream

    def ended(self, command: str) -> None:
        """The command is over: later messages of it are counted and skipped."""
        if self.streams is not None:
            self.streams.pop(command, None)
            if not self.streams:
                self.streams = None

    def dismissed(self, command: str) -> Credit | None:
        """The gateway has ended the command, not the agent: as `ended`, with the credit to send, so that the agent's
        `end` never waits behind chunks that have no room.
        """
        stream = self._stream(command)
        if stream is None:
            return None
        self.ended(command)
        spent = self.window - stream.room
        return Credit(id=command, bytes=spent) if spent else None

    def released(self, command: str) -> Credit | None:
        """The agent is to end the command: the credit to send for all that is stored and was not granted back,
        whether a reader of its results has come on or not.
        """
        stream = self._stream(command)
        if stream is None:
            return None
        grant, stream.owed, stream.withheld = stream.owed + stream.withheld, 0, 0
        stream.room += grant
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
        if size > stream.room:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"chunk of {size} bytes of {chunk.id} exceeds the credit left, {stream.room}"
            )
        stream.next += 1
        stream.room -= size
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
        if stream.input_room + credit.bytes > 1 << 30:
            raise ProtocolViolation(CloseCode.PROTOCOL, f"credit of {credit.id} exceeds max {1 << 30} bytes")
        stream.granted(credit.bytes)
        return Action.GRANT

    def store(self, count: int) -> Rx:
        """The next `count` numbered messages are stored: the receipt to send."""
        self.stored += count
        if self.stored > self.received:
            raise ValueError(f"stored {self.stored} of {self.received} messages")
        return Rx(s=self.stored)

    def withhold(self, command: str) -> None:
        """The store holds so much of the stream for its reader that no credit is granted until `grant_withheld`."""
        stream = self._stream(command)
        if stream is not None:
            stream.full = True

    def withholds(self, command: str) -> bool:
        stream = self._stream(command)
        return stream is not None and stream.full

    def grant_withheld(self, command: str) -> Credit | None:
        """The reader has made room: the credit to send for what was stored meanwhile."""
        stream = self._stream(command)
        if stream is None:
            return None
        size, stream.withheld, stream.full = stream.withheld, 0, False
        return self.repay(command, size)

    def repay(self, command: str, size: int) -> Credit | None:
        """`size` bytes of the stream are stored: the credit to send, once half a window has come together. None while
        the stream's reader is too far behind: see `withhold`."""
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
        stream.room += grant
        return Credit(id=command, bytes=grant)
