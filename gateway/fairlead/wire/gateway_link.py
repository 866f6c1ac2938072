"""The gateway's end of a link: which messages are allowed in which phase, and which of them are numbered.

Each session has one and passes decoded messages to it. It returns the action that the session must take, and holds no
message, no socket and no clock. It uses slots and creates containers on first use to remain small, because every idle
agent has one. How much each command may still send is in its `GatewayStream`.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from fairlead.errors import ProtocolViolation
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.gateway_stream import GatewayStream
from fairlead.wire.messages import (
    CHUNK_LIMIT,
    OWN_EVENTS,
    WINDOW,
    Ack,
    Auth,
    Bye,
    Chunk,
    Credit,
    End,
    Event,
    Facts,
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
    STORE_UNASKED = "as STORE, and count it against the rate of messages: no credit bounds it"
    SKIP = "count it as stored and grant back the credit that it used: it is numbered, but belongs to no open stream"
    GRANT = "send the input that the granted credit allows"
    CHANGE = "keep the facts that have changed"
    LEAVE = "end the link: the agent leaves"
    IGNORE = "do nothing"


GREETING, CLAIMING, READY, CLOSED = LinkPhase
CLAIM, ANSWER, STORE, STORE_UNASKED, SKIP, GRANT, CHANGE, LEAVE, IGNORE = Action
"""The members as names of this module: CPython 3.11 takes 70 ns to find a member in its enumeration, and every message
asks for several."""


class GatewayLink:
    """The state machine of a link. Raises ProtocolViolation with the close code to send; after that, only `closed` may
    be called."""

    __slots__ = ("phase", "received", "stored", "streams")

    def __init__(self) -> None:
        self.phase = GREETING
        self.received = 0
        self.stored = 0
        self.streams: dict[str, GatewayStream] | None = None

    @property
    def window(self) -> int:
        """The credit in bytes with which each command starts. It is no slot, because all links of a node have the same:
        a session has that of its node."""
        return WINDOW

    def receive(self, message: FromAgent | None) -> Action:
        """The action that `message` requires. None stands for a message that the codec ignored."""
        phase = self.phase
        if phase is not READY:
            return self._greet(message)
        kind = type(message)
        if kind is Chunk:
            return self._chunk(message)  # type: ignore[arg-type]  # `kind` is its exact type; isinstance costs 3×
        if kind is Hb:
            return ANSWER
        if kind is Event:
            return self._event(message)  # type: ignore[arg-type]
        if kind is Ack:
            self.received += 1
            stream = self.stream(message.id)  # type: ignore[union-attr]
            if stream is None:
                return SKIP
            return STORE if stream.receive_ack(message) else STORE_UNASKED  # type: ignore[arg-type]
        if kind is End:
            return self._end(message)  # type: ignore[arg-type]
        if kind is Credit:
            return self._credit(message)  # type: ignore[arg-type]
        if kind is Facts:
            return CHANGE
        if kind is Bye:
            return LEAVE
        if message is None or kind is Auth:
            return IGNORE
        raise ProtocolViolation(CloseCode.PROTOCOL, "second hello: expected one on each link")

    def _event(self, event: Event) -> Action:
        if event.type.startswith(OWN_EVENTS):
            raise ProtocolViolation(
                CloseCode.PROTOCOL,
                f"event of type {event.type[:40]!r}: expected one that does not begin with {OWN_EVENTS}",
            )
        self.received += event.qos
        return STORE

    def _greet(self, message: FromAgent | None) -> Action:
        if self.phase is CLOSED:
            return IGNORE
        if isinstance(message, Hello) and self.phase is GREETING:
            self.phase = CLAIMING
            return CLAIM
        if isinstance(message, Bye):
            return LEAVE
        if isinstance(message, Hb) and self.phase is CLAIMING:
            return ANSWER
        if message is None:
            return IGNORE
        first = "hello" if self.phase is GREETING else "nothing but hb and bye until welcome"
        raise ProtocolViolation(CloseCode.PROTOCOL, f"{type(message).__name__.lower()} out of order: expected {first}")

    def welcomed(self) -> None:
        """Record that the claim succeeded and welcome is being sent: from now on the agent may send all messages."""
        if self.phase is not CLAIMING:
            raise ValueError(f"welcome in phase {self.phase.name}: expected CLAIMING")
        self.phase = READY

    def closed(self) -> None:
        """Record that the connection is closing: all further messages are ignored."""
        self.phase = CLOSED
        self.streams = None

    def opened(self, command: str, next_chunk: int = 0, input_next: int = 0) -> GatewayStream:
        """Open the stream of a command that was sent or resumed on this link, with a full window."""
        if self.streams is None:
            self.streams = {}
        stream = self.streams[command] = GatewayStream(next_chunk, input_next, self.window)
        return stream

    def ended(self, command: str) -> None:
        """Remove the stream of a command that has ended. Its later messages are counted and skipped."""
        if self.streams is not None:
            self.streams.pop(command, None)
            if not self.streams:
                self.streams = None

    def dismissed(self, command: str) -> Credit | None:
        """Like `ended`, for a command that the gateway has ended, not the agent. Returns the credit to send, so that
        the agent's `end` never waits behind chunks that have no credit.
        """
        stream = self.stream(command)
        if stream is None:
            return None
        self.ended(command)
        return _grant(command, self.window - stream.credit_left)

    def released(self, command: str) -> Credit | None:
        """The credit to send when the agent is told to end the command. It covers everything that is stored and was not
        granted back, even if a reader of the results has not read on.
        """
        stream = self.stream(command)
        return None if stream is None else _grant(command, stream.repay_all())

    def stream(self, command: str) -> GatewayStream | None:
        """The open stream of `command` on this link, if any."""
        return self.streams.get(command) if self.streams is not None else None

    def _chunk(self, chunk: Chunk) -> Action:
        self.received += 1
        size = len(chunk.payload)
        if size > CHUNK_LIMIT:
            raise ProtocolViolation(CloseCode.TOO_BIG, f"chunk of {size} bytes exceeds max {CHUNK_LIMIT}")
        streams = self.streams
        stream = streams.get(chunk.id) if streams is not None else None  # `self.stream`, without the cost of a call
        if stream is None:
            return SKIP
        stream.receive_chunk(chunk, size)
        return STORE if size else STORE_UNASKED

    def _end(self, end: End) -> Action:
        self.received += 1
        stream = self.stream(end.id)
        if stream is None:
            return SKIP
        stream.receive_end(end)
        return STORE

    def _credit(self, credit: Credit) -> Action:
        stream = self.stream(credit.id)
        if stream is None:
            return IGNORE
        stream.receive_input_credit(credit)
        return GRANT

    def store(self, count: int, dropped: int = 0) -> Rx:
        """Record that the next `count` numbered messages are stored. Returns the receipt to send, which also tells the
        agent how many of its oldest events were dropped."""
        self.stored += count
        if self.stored > self.received:
            raise ValueError(f"{self.stored} messages stored: expected at most {self.received}, which were received")
        return Rx(s=self.stored, dropped=dropped)

    def withhold(self, command: str) -> None:
        """Grant no credit to the stream until `grant_withheld`, because the store holds too much for its reader."""
        stream = self.stream(command)
        if stream is not None:
            stream.withhold()

    def withholds(self, command: str) -> bool:
        stream = self.stream(command)
        return stream is not None and stream.full

    def grant_withheld(self, command: str) -> Credit | None:
        """Grant credit again after the reader has read on. Returns the credit for what was stored meanwhile."""
        stream = self.stream(command)
        return None if stream is None else self.repay(command, stream.stop_withholding())

    def repay(self, command: str, size: int) -> Credit | None:
        """Record that `size` bytes of the stream are stored. Returns the credit to send once it amounts to half a
        window. None while the reader of the stream is too far behind: see `withhold`."""
        stream = self.stream(command)
        return None if stream is None else _grant(command, stream.repay(size, self.window))


def _grant(command: str, size: int) -> Credit | None:
    return Credit(id=command, bytes=size) if size else None
