"""One live link in this process: its connection, its codec and its end of the conversation, joined.

A session is the carrier's listener. It passes everything that needs Redis to its `SessionHandler` (in `routing`). It
starts no task and keeps no message beyond those that are not stored yet. An idle session is this object, the name of
its agent and one string of octets (see `link_identity`), and the garbage collector does not know it. What all sessions
of a node share, and which of them are in a rare state, is in their `SessionContext`. Other layers change a session
through its methods only. Its parts are base classes and not objects of their own, which would cost
every idle link some hundred bytes: `GatewayLink` the state of the conversation, `PendingMessages` what is to be stored,
`LinkTelemetry` what is measured.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.errors import ProtocolViolation
from fairlead.garbage_collector import untrack
from fairlead.hub.delivery_queue import DeliveryQueue
from fairlead.hub.link_identity import (
    ISSUER_CHARACTERS,
    KEY_CHARACTERS,
    UNKNOWN,
    LinkIdentity,
    pack_facts,
    pack_identity,
    unpack_identity,
)
from fairlead.hub.link_telemetry import LinkTelemetry
from fairlead.hub.session_context import SessionContext
from fairlead.hub.session_handler import SessionConnection
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.gateway_link import (
    ANSWER,
    CHANGE,
    CLAIM,
    CLOSED,
    GRANT,
    GREETING,
    LEAVE,
    READY,
    SKIP,
    STORE,
    STORE_UNASKED,
)
from fairlead.wire.gateway_stream import GatewayStream
from fairlead.wire.messages import (
    Bye,
    Chunk,
    Credit,
    Drain,
    Event,
    Facts,
    Hb,
    Hello,
    Message,
    MoveReason,
    Welcome,
)
from fairlead.wire.retry import HANDED_OUT_MS
from fairlead.wire.websocket.frames import is_close_code

RETRY_MS = (HANDED_OUT_MS // 2, HANDED_OUT_MS)
"""The range from which the pause of an agent that sent too much is drawn, so that many such agents do not come back
together."""
LARGE_MESSAGE = 4096
"""Bytes. A message of this size that is not stored counts as several messages against the agent's budget."""


class Session(LinkTelemetry):
    __slots__ = ("_identity", "agent", "deliveries", "drained")

    def __init__(self, context: SessionContext, opening: list[int] | None = None) -> None:
        """`opening` has the timestamps of the link's opening."""
        super().__init__(context, opening)
        untrack(self)
        self.agent = ""
        self._identity: LinkIdentity | bytes = UNKNOWN
        """Packed from welcome on."""
        self.deliveries: DeliveryQueue | None = None
        """The commands that wait to be sent on this link, or None if no command waits."""
        self.drained = False
        """True once the agent was told to leave: its absence afterwards is not a failure."""

    @property
    def ready(self) -> bool:
        """True from welcome until the link closes."""
        return self.phase is READY

    @property
    def open(self) -> bool:
        return self.connection is not None and self.phase is not CLOSED

    @property
    def identity(self) -> LinkIdentity:
        """Who the agent is, by what it said and by what the node knows. From welcome on, each access unpacks it."""
        known = self._identity
        return known if isinstance(known, LinkIdentity) else unpack_identity(known)

    @property
    def boot(self) -> str:
        return self.identity.boot

    @property
    def conn(self) -> int:
        return self.identity.conn

    @property
    def gen(self) -> int:
        """The generation of the agent's claim; 0 before the claim."""
        return self.identity.gen

    @property
    def sid(self) -> str:
        return self.identity.sid

    @property
    def memory(self) -> str:
        """The id under which the agent remembers commands: that of its journal if it has one, otherwise `boot`."""
        return self.identity.memory

    @property
    def welcomed_at(self) -> float:
        return self.identity.welcomed_at

    # -- from hello to welcome ---------------------------------------------------------------------

    def identify(self, agent: str, hello: Hello, packed_sid: bytes, thumbprint: str = "", issuer: str = "") -> None:
        """Record who the agent is and what it said about itself. `packed_sid` is the id of the session as octets,
        `thumbprint` that of the key that the agent has proved to hold, and `issuer` that of the key that has signed its
        credential."""
        self.agent = agent
        key, issuer = thumbprint[:KEY_CHARACTERS], issuer[:ISSUER_CHARACTERS]
        self._identity = LinkIdentity(
            hello.boot, hello.conn, packed_sid, hello.caps.journal, pack_facts(hello.facts), key, issuer=issuer
        )

    def claimed(self, gen: int) -> None:
        """Record that the agent is claimed for this link, with generation `gen`."""
        self._amend(gen=gen)

    def welcome(self, message: Welcome) -> None:
        """Send welcome, because the agent is claimed for this link. From now on the session is ready."""
        self.welcomed()
        self._amend(welcomed_at=asyncio.get_running_loop().time())
        self.send(message)

    def keep_facts(self, facts: Mapping[str, str]) -> None:
        """Keep what the agent's facts are by now."""
        self._amend(packed_facts=pack_facts(facts))

    def _amend(self, **changes: Any) -> None:
        known = msgspec.structs.replace(self.identity, **changes)
        self._identity = pack_identity(known) if self.ready else known

    # -- sending and closing -----------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send one message. Closes the link with 4408 if too much waits for the agent to read it."""
        connection = self.connection
        if connection is None or self.phase is CLOSED:
            return
        context = self.context
        data = context.codec.encode(message)
        context.message_counters.sent(message, len(data))
        connection.send(data)

    async def wait_writable(self, timeout: float) -> None:
        """Wait until the agent has read most of what it was sent. A slow agent is waited for; if nothing at all is
        read for `timeout` seconds, the link is closed with 4408, which ends the wait too."""
        connection, waiters = self.connection, self.context.waiters
        while connection is not None and connection.congested and self.open:
            if (waiter := waiters.get(self)) is None:
                waiter = waiters[self] = asyncio.get_running_loop().create_future()
            before = connection.buffered()
            done, _ = await asyncio.wait({waiter}, timeout=timeout)
            if not done and connection.buffered() >= before:
                self.close(CloseCode.SLOW_READER, f"nothing was read for {timeout:g} s")

    def close(self, code: int, reason: str, retry_ms: int | None = None) -> None:
        """Send bye and close. `on_close` follows when the connection is over."""
        connection = self.connection
        if connection is None or self.phase is CLOSED:
            return
        if self.phase is not GREETING and code != CloseCode.SLOW_READER:
            self.send(Bye(code=code, why=reason, retry=retry_ms))
        self._close_link()
        connection.close(code, reason)

    @property
    def in_command(self) -> bool:
        """True while the agent runs a command, or one waits to be sent to it."""
        return bool(self.streams) or self.deliveries is not None

    def announce_drain(self, why: MoveReason, slot_ms: int) -> None:
        """Tell the agent to move to another node in `slot_ms` milliseconds."""
        self.drained = True
        if self.ready:  # before welcome, bye is the only message that an agent accepts
            self.send(Drain(why=why, slot=slot_ms))

    def close_for_restart(self) -> None:
        """Close the link because this node stops. The agent connects to another node."""
        self.drained = True
        self.close(CloseCode.RESTART, "the node restarts")

    # -- commands that wait to be sent -------------------------------------------------------------

    def queue_delivery(self, command: str, rung_at: int, gives_way: bool, *, offered: bool = False) -> None:
        """Let the command wait to be sent on this link; see `DeliveryQueue.add`. `offered` says that it was offered to
        this link."""
        if self.deliveries is None:
            self.deliveries = DeliveryQueue()
        self.deliveries.add(command, rung_at, gives_way)
        if offered:
            self.deliveries.offered[command] = self.gen

    @property
    def sends_at_once(self) -> bool:
        """True if no command waits to be sent, and the agent has read most of what it was sent."""
        connection = self.connection
        return self.deliveries is None and self.ready and connection is not None and not connection.congested

    def begin_delivery(self) -> DeliveryQueue | None:
        """Hand the queue to the caller, who sends what it holds, empties it and calls `end_delivery`. None if nothing
        waits, before welcome, and while another caller has the queue."""
        queue = self.deliveries
        if not queue or queue.sending or not self.ready:
            return None
        queue.sending = True
        return queue

    def end_delivery(self, queue: DeliveryQueue) -> None:
        """Take the queue back. What is left in it waits for the next `begin_delivery`."""
        queue.sending = False
        if not queue:
            self.deliveries = None

    # -- streams of commands -----------------------------------------------------------------------

    def open_stream(self, command: str, next_chunk: int = 0, input_next: int = 0) -> GatewayStream:
        """Open the stream of a command that is sent, or taken over, on this link."""
        before = len(self.streams or ())
        stream = self.opened(command, next_chunk, input_next)
        self.context.totals.streams += len(self.streams or ()) - before
        return stream

    def gives_way(self, command: str) -> bool:
        """Whether what the agent sends of this command may wait behind what others send."""
        stream = self.stream(command)
        return stream is not None and stream.bulk

    def close_stream(self, command: str) -> None:
        """Close the stream of a command that is over. Later messages of it are counted and skipped."""
        before = len(self.streams or ())
        self.ended(command)
        self.context.totals.streams += len(self.streams or ()) - before

    def dismiss_stream(self, command: str) -> Credit | None:
        """Close the stream of a command that the gateway, not the agent, has ended. Returns the credit to send."""
        before = len(self.streams or ())
        credit = self.dismissed(command)
        self.context.totals.streams += len(self.streams or ()) - before
        return credit

    def _close_link(self) -> None:
        self.context.totals.streams -= len(self.streams or ())
        self.closed()

    # -- the carrier's listener --------------------------------------------------------------------

    def on_open(self, connection: SessionConnection) -> None:
        self.connection = connection
        self.context.handler.link_opened(self)

    def on_message(self, connection: SessionConnection, data: bytes | str) -> None:
        if self.phase is CLOSED:
            return
        context = self.context
        try:
            message = context.codec.decode(data)
            context.message_counters.received(message, len(data))
            act = self.receive(message)
        except ProtocolViolation as violation:
            self.close(violation.close_code, violation.message)
            return
        if act is STORE or act is STORE_UNASKED:
            if type(message) is Event:
                connection.charge(events=1)
            elif act is STORE_UNASKED:
                connection.charge(1)
            if self.timings is not None:
                self._stamp(message)
            self.add_pending(message)
            return
        if act is SKIP:
            connection.charge(1)  # it is numbered, but belongs to no open command
            # Only the credit that an unwanted chunk used is kept, to be granted back.
            self.add_pending(Credit(message.id, len(message.payload)) if isinstance(message, Chunk) else None)
            return
        if len(data) >= LARGE_MESSAGE:
            connection.charge(len(data) // LARGE_MESSAGE)
        if act is ANSWER:
            assert isinstance(message, Hb)
            if message.echo is None:  # an echo is an answer itself: answering it would never end
                self.send(Hb(echo=message.ts))
            if message.rtt is not None and self.add_round_trip(message.rtt):
                context.handler.rtt_reported(self, message.rtt)
        elif act is CLAIM:
            assert isinstance(message, Hello)
            context.handler.hello_received(self, message)
        elif act is GRANT:
            assert isinstance(message, Credit)
            context.handler.input_credit_received(self, message.id)
        elif act is CHANGE:
            assert isinstance(message, Facts)
            context.handler.facts_changed(self, message.changes)
        elif act is LEAVE:
            assert isinstance(message, Bye)
            # With the agent's own code, in case its close frame never arrives.
            connection.close(message.code if is_close_code(message.code) else CloseCode.NORMAL, message.why)
        # `IGNORE` needs nothing.

    @property
    def asked(self) -> int:
        """The carrier's count of messages that have a bound other than its message rate: numbered messages. Those of a
        stream are bounded by its credit, and all by what may be pending; events, messages of no stream and those that
        no credit bounds are charged separately."""
        return self.received

    def on_excess(self, connection: SessionConnection, reason: str) -> None:
        self.close(CloseCode.RATE, reason, random.randint(*RETRY_MS))

    def on_close(self, connection: SessionConnection, code: int, reason: str) -> None:
        by_gateway = self.phase is CLOSED
        self._close_link()
        self.connection = None
        self.context.paused.discard(self)
        self.on_writable(connection)
        self.context.handler.link_closed(self, code, reason, by_gateway)

    def on_silence(self, connection: SessionConnection) -> None:
        self.close(CloseCode.SILENT, "nothing was heard for 2.5 heartbeats")

    def on_writable(self, connection: SessionConnection) -> None:
        waiter = self.context.waiters.pop(self, None)
        if waiter is not None:
            waiter.set_result(None)

    def on_overflow(self, connection: SessionConnection) -> None:
        self.close(CloseCode.SLOW_READER, "the send queue is full: the agent reads too slowly")
