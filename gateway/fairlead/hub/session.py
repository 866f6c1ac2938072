"""A live link in this process: one connection, its codec and its end of the conversation, joined.

It is the carrier's listener. What needs Redis it hands to its `SessionHandler` (routing); it knows no Redis, starts no
task and holds nothing per message beyond what is not stored yet. An idle session is this object, a GatewayLink and
four short strings.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

from fairlead.errors import ProtocolViolation
from fairlead.hub.totals import Totals
from fairlead.telemetry.command_timing import CommandStats, CommandTiming
from fairlead.telemetry.decaying_histogram import new_histogram, observe
from fairlead.telemetry.message_counters import MessageCounters
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec
from fairlead.wire.framing import is_close_code
from fairlead.wire.gateway_link import Action, GatewayLink, LinkPhase, Stream
from fairlead.wire.messages import Ack, Bye, Chunk, Credit, End, Event, FromAgent, Hb, Hello, Message
from fairlead.wire.retry import HANDED_OUT_MS

PENDING_MESSAGES = 1_024
PENDING_BYTES = 1 << 20
"""Received and not yet stored, per session: above either, reading stops until half of it is stored. Less is allowed
when all sessions together have much of it: see `Totals.room`."""
RETURN_MS = (HANDED_OUT_MS // 2, HANDED_OUT_MS)
"""When an agent that was closed for what it sent is to come back: drawn between these, so that many do not together."""
BULKY = 4096
"""Bytes of a message that is not stored, from which on it counts as several against the agent's budget."""
INSANE_RTT_MS = 1e7
"""Nearly three hours: no round trip, but a number that an agent made up (NaN and infinity fail the test too)."""
OVERHEAD = 200
"""What a pending message costs beside its payload."""


class Connection(Protocol):
    """What a session uses of the carrier's connection."""

    @property
    def closing(self) -> bool: ...
    def send(self, message: bytes | str) -> None: ...
    def close(self, code: int = 1000, reason: str = "") -> None: ...
    def abort(self) -> None: ...
    @property
    def congested(self) -> bool: ...
    def buffered(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def charge(self, messages: float = 0, events: int = 0) -> None: ...


class SessionHandler(Protocol):
    """Who serves sessions: routing. Called on the event loop; must not block."""

    message_counters: MessageCounters
    """Where this node counts messages."""
    totals: Totals
    """The sums over all sessions of this node."""

    def opened(self, session: Session) -> None:
        """The upgrade is done; hello is expected."""

    def greeted(self, session: Session, hello: Hello) -> None:
        """Hello came: claim the agent, then welcome it."""

    def received(self, session: Session) -> None:
        """`session.pending` has something to store, and nobody stores it yet."""

    def granted(self, session: Session, command: str) -> None:
        """The agent takes more input of `command`."""

    def answered(self, session: Session, rtt_ms: float) -> None:
        """The agent told its last round trip."""

    def closed(self, session: Session, code: int, reason: str) -> None:
        """The connection is over; the session will not be heard of again."""


class Session:
    __slots__ = (
        "agent", "boot", "codec", "conn", "connection", "delivering", "drained", "facts", "gen", "handler", "link",
        "memory", "opening", "ours", "paused", "pending", "pending_bytes", "recording", "rtt", "rung", "sid", "since",
        "tally", "timings", "trips", "waiter",
    )  # fmt: skip

    def __init__(self, codec: Codec[FromAgent], handler: SessionHandler, new_histogram: int) -> None:
        self.codec = codec
        self.handler = handler
        self.link = GatewayLink(new_histogram)
        self.connection: Connection | None = None
        self.agent = ""
        self.boot = ""
        self.memory = ""
        """What a command that was sent is remembered by: the agent's journal, else its boot."""
        self.facts = b""
        """What the agent said of itself, as JSON: Redis may lose it. About 130 bytes of the usual five facts."""
        self.conn = 0
        self.sid = ""
        self.gen = 0
        self.since = 0.0
        """When its welcome was sent, by the event loop's clock."""
        self.rtt: float | None = None
        """The last round trip that the agent told, in ms."""
        self.trips: bytearray | None = None
        """The window of its round trips: most of what telemetry costs an idle session, so made with the first."""
        self.tally: CommandStats | None = None
        """What its commands took."""
        self.timings: dict[str, CommandTiming] | None = None
        """Of its open commands, those that were written on this link or taken up on it."""
        self.opening: list[int] | bytes | None = None
        """The stamps of its opening, packed once it is welcomed; empty when they are told, None when nobody asks."""
        self.ours = False
        """We closed it, not the agent or the network."""
        self.drained = False
        """Told to leave: its absence afterwards is no loss."""
        self.pending: list[FromAgent | None] | None = None
        """Numbered messages not yet stored, in order; None only has to be counted, a Credit is granted as well."""
        self.pending_bytes = 0
        self.paused = False
        self.recording = False
        """Somebody stores `pending` right now."""
        self.rung: dict[str, CommandTiming] | None = None
        """Commands to be delivered, in order."""
        self.delivering = False
        """Somebody delivers `rung` right now."""
        self.waiter: asyncio.Future[None] | None = None

    @property
    def ready(self) -> bool:
        return self.link.phase is LinkPhase.READY

    @property
    def open(self) -> bool:
        return self.connection is not None and self.link.phase is not LinkPhase.CLOSED

    def send(self, message: Message) -> None:
        """Write one message. An agent that does not read what it is sent is closed with 4408."""
        connection = self.connection
        if connection is None or self.link.phase is LinkPhase.CLOSED:
            return
        data = self.codec.encode(message)
        self.handler.message_counters.sent(message, len(data))
        connection.send(data)

    async def writable(self, patience: float) -> None:
        """Wait until the agent has read most of what it was sent. When nothing of it can be written for `patience`
        seconds the link is closed with 4408; that ends the wait too. A slow agent is waited for."""
        connection = self.connection
        while connection is not None and connection.congested and self.open:
            if self.waiter is None:
                self.waiter = asyncio.get_running_loop().create_future()
            before = connection.buffered()
            done, _ = await asyncio.wait({self.waiter}, timeout=patience)
            if not done and connection.buffered() >= before:
                self.close(CloseCode.SLOW_READER, f"nothing was read for {patience:g} s")

    def close(self, code: int, reason: str, retry_ms: int | None = None) -> None:
        """Say bye and close. `on_close` follows when the connection is over."""
        connection = self.connection
        if connection is None or self.link.phase is LinkPhase.CLOSED:
            return
        if self.link.phase is not LinkPhase.GREETING and code != CloseCode.SLOW_READER:
            self.send(Bye(code=code, why=reason, retry=retry_ms))
        self._end_link()
        connection.close(code, reason)

    def begin(self, command: str, next_chunk: int = 0, input_next: int = 0) -> Stream:
        """The stream of a command that is sent, or taken up again, on this link."""
        before = len(self.link.streams or ())
        stream = self.link.opened(command, next_chunk, input_next)
        self.handler.totals.streams += len(self.link.streams or ()) - before
        return stream

    def end(self, command: str) -> None:
        """The command is over: what still comes of it is counted and skipped."""
        before = len(self.link.streams or ())
        self.link.ended(command)
        self.handler.totals.streams += len(self.link.streams or ()) - before

    def dismiss(self, command: str) -> Credit | None:
        """The gateway has ended the command, not the agent: as `end`, and the credit to send."""
        before = len(self.link.streams or ())
        credit = self.link.dismissed(command)
        self.handler.totals.streams += len(self.link.streams or ()) - before
        return credit

    def _end_link(self) -> None:
        self.handler.totals.streams -= len(self.link.streams or ())
        self.link.closed()

    def take_pending(self) -> list[FromAgent | None]:
        """What is to be stored now; the caller stores it and then calls `relieved`."""
        taken, self.pending = self.pending or [], None
        return taken

    def relieved(self, size: int) -> None:
        """`size` pending bytes are stored: read on, when reading had stopped."""
        totals = self.handler.totals
        self.pending_bytes -= size
        totals.pending -= size
        if self.paused and self.pending_bytes * 2 <= max(0, min(PENDING_BYTES, totals.room)):
            self.paused = False
            if self.connection is not None:
                self.connection.resume_reading()

    def forgo(self) -> None:
        """What is pending will not be stored, since the link is over. The agent was told of no receipt for it."""
        self.pending = None
        self.handler.totals.pending -= self.pending_bytes
        self.pending_bytes = 0

    # -- the carrier's listener --------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self.handler.opened(self)

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        if self.link.phase is LinkPhase.CLOSED:
            return
        try:
            message = self.codec.decode(data)
            self.handler.message_counters.received(message, len(data))
            act = self.link.receive(message)
        except ProtocolViolation as violation:
            self.close(violation.close_code, violation.message)
            return
        if act is Action.STORE:
            if type(message) is Event:
                connection.charge(events=1)
            self._keep(message)
            return
        if act is Action.SKIP:
            connection.charge(1)  # it is numbered, but nobody asked for it
            # Of a chunk that nobody wants only what it took of the credit is kept, to be granted back.
            self._keep(Credit(message.id, len(message.payload)) if isinstance(message, Chunk) else None)
            return
        if len(data) >= BULKY:
            connection.charge(len(data) // BULKY)
        if act is Action.ANSWER:
            assert isinstance(message, Hb)
            if message.echo is None:  # an echo is an answer already: answering it would never end
                self.send(Hb(echo=message.ts))
            if message.rtt is not None and 0 <= message.rtt < INSANE_RTT_MS:
                self.rtt = message.rtt
                if self.trips is None:
                    self.trips = new_histogram()
                observe(self.trips, message.rtt / 1000)
                self.handler.answered(self, message.rtt)
        elif act is Action.CLAIM:
            assert isinstance(message, Hello)
            self.handler.greeted(self, message)
        elif act is Action.GRANT:
            assert isinstance(message, Credit)
            self.handler.granted(self, message.id)
        elif act is Action.LEAVE:
            assert isinstance(message, Bye)
            # With its own code, in case that its close frame never comes.
            connection.close(message.code if is_close_code(message.code) else CloseCode.NORMAL, message.why)
        # An ignored message asks for nothing.

    @property
    def asked(self) -> int:
        """Numbered messages so far. Those of a stream are bounded by its credit, and all by what may be pending;
        events, and what belongs to no stream, are charged for."""
        return self.link.received

    def on_excess(self, connection: Connection, reason: str) -> None:
        self.close(CloseCode.RATE, reason, random.randint(*RETURN_MS))

    def _keep(self, message: FromAgent | None) -> None:
        if self.timings is not None:
            self._stamp(message)
        if self.pending is None:
            self.pending = []
        self.pending.append(message)
        size, totals = pending_size(message), self.handler.totals
        self.pending_bytes += size
        totals.pending += size
        too_much = self.pending_bytes > min(PENDING_BYTES, totals.room) or len(self.pending) > PENDING_MESSAGES
        if too_much and not self.paused and self.connection is not None:
            self.paused = True
            self.connection.pause_reading()
        if not self.recording:
            self.handler.received(self)

    def _stamp(self, message: FromAgent | None) -> None:
        """Note when an open command came on."""
        assert self.timings is not None
        if not isinstance(message, Ack | Chunk | End) or (timing := self.timings.get(message.id)) is None:
            return
        if type(message) is Chunk:
            timing.first = timing.first or time.time_ns()
        elif type(message) is End:
            timing.ended = time.time_ns()
        else:
            timing.acked = timing.acked or time.time_ns()

    def timed(self, command: str) -> CommandTiming | None:
        """The stamps of a command that is over on this link, for the last time."""
        timings = self.timings
        if timings is None:
            return None
        timing = timings.pop(command, None)
        if not timings:
            self.timings = None
        return timing

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.ours = self.link.phase is LinkPhase.CLOSED
        self._end_link()
        self.connection = None
        self.on_writable(connection)
        self.handler.closed(self, code, reason)

    def on_silence(self, connection: Connection) -> None:
        self.close(CloseCode.SILENT, "nothing was heard for 2.5 heartbeats")

    def on_writable(self, connection: Connection) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.set_result(None)

    def on_overflow(self, connection: Connection) -> None:
        self.close(CloseCode.SLOW_READER, "more waits to be read than the send queue holds")


def pending_size(message: FromAgent | None) -> int:
    """The bytes that a pending message is counted with."""
    return OVERHEAD + len(getattr(message, "payload", b""))
