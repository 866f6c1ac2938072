"""One connection of the agent: hello, welcome, heartbeats, and the messages of both directions.

It is the carrier's listener, made by the dialer for each attempt. It writes only while the socket accepts more, so that
messages wait in the outbox and not in the socket. One timer serves heartbeats and the detection of silence; a drained
session has a second one, for its slot. While the agent moves there are two sessions, and the older one serves until the
newer one is welcomed. After `leave`, a session ignores whatever still arrives on its socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from fairlead.agent.host.fact_reader import changed_facts
from fairlead.agent.link.bounds import bounded
from fairlead.agent.link.lanes import Lanes
from fairlead.carrier.listener import Connection
from fairlead.errors import ProtocolViolation
from fairlead.text import plain
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec
from fairlead.wire.messages import (
    Bye,
    Cancel,
    Cmd,
    Drain,
    Facts,
    FromGateway,
    Hb,
    Hello,
    Message,
    Numbered,
    Rx,
    Welcome,
)

logger = logging.getLogger("fairlead.agent")

SILENCE = 2.5
"""Heartbeat intervals without any message after which the link counts as dead, on both sides."""
BYE_TIMEOUT = 5.0
"""Seconds to wait for the close frame after the gateway's bye; then the bye counts as the close."""
WARN_EVERY = 60.0
"""Seconds between two warnings of removed events."""
FIRST_HEARTBEAT = 10.0
"""Seconds between heartbeats until the welcome specifies the interval."""


class CommandReceiver(Protocol):
    """Receives the messages about commands that a session reads; `CommandRunner` implements it. Called on the event
    loop; must not block.
    """

    def on_command(self, cmd: Cmd) -> None: ...
    def on_cancel(self, cancel: Cancel) -> None: ...
    def on_progress(self, commands: Iterable[str]) -> None:
        """Credit or input may have arrived for these commands."""


OnWelcome: TypeAlias = Callable[["AgentSession", Welcome], None]


class AgentSession:
    def __init__(
        self,
        codec: Codec[FromGateway],
        link: AgentLink,
        hello: Callable[[], Hello],
        receiver: CommandReceiver,
        on_welcome: OnWelcome,
    ) -> None:
        """`hello` is called when the connection is open. `on_welcome` is called before the next message is read, which
        may be for a command that continues.
        """
        self.link = link
        self._codec = codec
        self._hello = hello
        self._receiver = receiver
        self._on_welcome = on_welcome
        self._loop = loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._queue: Lanes[Numbered] = Lanes()
        """Messages of the outbox that have not been written to this link yet, by lane."""
        self._left = False
        self._interval = FIRST_HEARTBEAT
        self._timer: asyncio.TimerHandle | None = None
        self._sent = self._received = self._pinged = loop.time()
        self._rtt: float | None = None
        self._dropped, self._warn_at = 0, 0.0
        """The removed events that the log does not tell yet, and when it may."""
        self.welcome: asyncio.Future[Welcome] = loop.create_future()
        self._facts: Mapping[str, str] = {}
        """What the gateway knows of the agent's facts."""
        self.drain: Drain | None = None
        """The last `drain` message, if the gateway has asked this agent to move."""
        self.slot: asyncio.Future[Drain] = loop.create_future()
        """Done at the slot of the last drain, when the agent is to move."""
        self._slot_timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[tuple[int, str]] = loop.create_future()
        """Code and reason, once the connection is over."""
        self.by_us = False
        """Whether this side, and not the gateway, closed the connection."""
        self.bye: Bye | None = None

    @property
    def subprotocol(self) -> str:
        return self._codec.subprotocol

    @property
    def congested(self) -> bool:
        return self._connection is None or self._connection.congested

    def send_now(self, message: Message) -> None:
        """Write it immediately: small messages that must not wait behind results."""
        if isinstance(message, Numbered):
            self.link.written(message)
        self._write(message)

    def post(self, message: Numbered) -> None:
        """Write it after everything that was posted before, as soon as the socket accepts more."""
        self._queue.add(self.link.outbox.lane(message), (message,))
        self._pump()

    def tell_facts(self, facts: Mapping[str, str]) -> None:
        """Tell the gateway what differs from what it knows, if it takes that. Called after welcome."""
        changes = changed_facts(self._facts, facts)
        if changes and self.welcome.result().caps.facts:
            self._facts = facts
            self.send_now(Facts(changes))

    def start_heartbeats(self, interval: float) -> None:
        """Send heartbeats at this interval in seconds, which the welcome has specified."""
        self._interval = interval
        self._arm()

    def leave(self, code: int, reason: str) -> None:
        """Say bye and close; `closed` follows when the gateway has answered, or 5 s later. Nothing more is read."""
        self._left = self.by_us = True
        self._disarm()
        self._cancel_slot()
        connection = self._connection
        if connection is not None and not connection.closing:
            self._write(Bye(code=code, why=reason))
            connection.close(code, reason)

    def _write(self, message: Message) -> None:
        connection = self._connection
        if connection is not None and not connection.closing:
            self._sent = self._loop.time()
            connection.send(self._codec.encode(message))

    def _pump(self) -> None:
        while self._queue and self._connection is not None and not self._left:
            if self._connection.closing or self._connection.congested:
                return
            self.send_now(self._queue.take())

    # -- the one timer -----------------------------------------------------------------------------

    def _arm(self) -> None:
        self._disarm()
        due = min(self._due(), self._received + SILENCE * self._interval)
        self._timer = self._loop.call_at(due, self._tick)

    def _due(self) -> float:
        """When the next heartbeat is due: after an interval in which nothing was sent or nothing was received. The
        latter counts because the gateway need not answer the other messages.
        """
        return min(self._sent, max(self._received, self._pinged)) + self._interval

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _events_dropped(self, count: int) -> None:
        """Warn of events that the gateway has removed, once in a while: an agent that floods would flood its log."""
        self._dropped += count
        if self._received >= self._warn_at:
            self._warn_at = self._received + WARN_EVERY
            logger.warning(
                "the gateway has removed %d older events of this agent, which has sent more than one agent may have "
                "there: their readers are told; send fewer or smaller events",
                self._dropped,
            )
            self._dropped = 0

    def _drained(self, drain: Drain) -> None:
        """Remember the drain and wait for its slot; a later drain replaces it."""
        self.drain = drain
        self._cancel_slot()
        self._slot_timer = self._loop.call_later(drain.slot / 1000, self._reach_slot)

    def _reach_slot(self) -> None:
        if not self.slot.done() and self.drain is not None:
            self.slot.set_result(self.drain)

    def _cancel_slot(self) -> None:
        if self._slot_timer is not None:
            self._slot_timer.cancel()
            self._slot_timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._received + SILENCE * self._interval:
            self._lose(CloseCode.SILENT, f"nothing was heard for {SILENCE:g} heartbeats")
            return
        if now >= self._due():
            self._pinged = now
            self._write(Hb(ts=int(now * 1_000_000), rtt=self._rtt))
        self._arm()

    def _lose(self, code: int, why: str) -> None:
        """End the link from this side, without waiting for a peer that may be gone."""
        self.leave(code, why)
        self._finish(code, why)

    def _unclosed(self, bye: Bye) -> None:
        """End the link: the gateway said bye, but did not close the connection."""
        self._left = True
        if self._connection is not None:
            self._connection.close(CloseCode.NORMAL)
        self._finish(bye.code, bye.why)

    def _finish(self, code: int, reason: str) -> None:
        self._disarm()
        self._cancel_slot()
        if not self.closed.done():
            self.closed.set_result((code, reason))

    # -- the carrier's listener --------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        self._connection = connection
        self._received = self._pinged = self._loop.time()
        hello = self._hello()
        self._facts = hello.facts
        self.link.greeted(hello.have)
        self._write(hello)
        self._arm()

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        if self._left:
            return
        self._received = self._loop.time()
        try:
            message = bounded(self._codec.decode(data), self.link.outbox)
            progressed = self.link.receive(message)
        except ProtocolViolation as violation:
            logger.error("the gateway violated the protocol: %s", plain(violation.message))
            self._lose(violation.close_code, violation.message)
            return
        if self.link.released:
            for released in self.link.released:
                self._queue.add(self.link.outbox.lane(released), (released,))
            self.link.released.clear()
            self._pump()
        if progressed:
            self._receiver.on_progress(progressed)
        match message:
            case Cmd():
                self._receiver.on_command(message)
            case Cancel():
                self._receiver.on_cancel(message)
            case Hb(echo=int(echo)):
                self._rtt = max(0.0, self._received * 1000 - echo / 1000)
            case Welcome():
                self.welcome.set_result(message)
                self._on_welcome(self, message)
            case Drain():
                self._drained(message)
            case Rx(dropped=int(dropped)) if dropped:
                self._events_dropped(dropped)
            case Bye():
                self.bye = message
                self._disarm()
                self._timer = self._loop.call_later(BYE_TIMEOUT, self._unclosed, message)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._connection = None
        if self.bye is not None and code in (CloseCode.NO_STATUS, CloseCode.ABNORMAL):
            code, reason = self.bye.code, self.bye.why  # the bye stands for the close frame that did not come
        self._finish(code, reason)

    def on_silence(self, connection: Connection) -> None:
        """Not used: the protocol counts messages, not bytes; see `_tick`."""

    def on_writable(self, connection: Connection) -> None:
        self._pump()

    def on_overflow(self, connection: Connection) -> None:
        self._lose(CloseCode.SLOW_READER, "the gateway does not read what it is sent")
