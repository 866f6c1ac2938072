"""One connection of the agent: hello, welcome, heartbeats; what comes in is handed on, what goes out waits its turn.

It is the carrier's listener, made by the connector for each attempt. It writes only while the socket takes it, so
that what waits, waits in the outbox. One timer serves heartbeat and silence. A session that was left (`leave`) hears
nothing any more: whatever still arrives on its socket is of the past.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from fairlead.agent.link.bounds import bounded
from fairlead.carrier.listener import Connection
from fairlead.errors import ProtocolViolation
from fairlead.text import plain
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import Codec
from fairlead.wire.lanes import Lanes
from fairlead.wire.messages import (
    Bye,
    Cancel,
    Cmd,
    Drain,
    FromGateway,
    Hb,
    Hello,
    Message,
    Numbered,
    Welcome,
)

logger = logging.getLogger("fairlead.agent")

SILENCE = 2.5
"""Heartbeats without a word after which the link is dead, on both sides."""
BYE_TIMEOUT = 5.0
"""Seconds from the gateway's bye to its close frame; then the bye counts as one."""
FIRST_BEAT = 10.0
"""Seconds between heartbeats until welcome names the gateway's own."""


class CommandReceiver(Protocol):
    """Who serves a session: `CommandRunner`. Called on the event loop; must not block."""

    def commanded(self, cmd: Cmd) -> None: ...
    def cancelled(self, cancel: Cancel) -> None: ...
    def moved(self, commands: Iterable[str]) -> None:
        """These may write or read on."""


OnWelcome: TypeAlias = Callable[["AgentSession", Welcome], None]


class AgentSession:
    def __init__(
        self, codec: Codec[FromGateway], link: AgentLink, hello: Hello, receiver: CommandReceiver, welcomed: OnWelcome
    ) -> None:
        """`welcomed` is called before the next message is read, since that may be for a command that goes on."""
        self.link = link
        self._codec = codec
        self._hello = hello
        self._receiver = receiver
        self._welcomed = welcomed
        self._loop = loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._queue: Lanes[Numbered] = Lanes()
        """What stands in the outbox and was not yet written on this link, lane by lane."""
        self._left = False
        self._beat = FIRST_BEAT
        self._timer: asyncio.TimerHandle | None = None
        self._sent = self._heard = self._asked = loop.time()
        self._rtt: float | None = None
        self.welcome: asyncio.Future[Welcome] = loop.create_future()
        self.drain: asyncio.Future[Drain] = loop.create_future()
        self.closed: asyncio.Future[tuple[int, str]] = loop.create_future()
        """Code and reason, once it is over."""
        self.by_us = False
        """We closed it, not the gateway."""
        self.bye: Bye | None = None

    @property
    def subprotocol(self) -> str:
        return self._codec.subprotocol

    @property
    def congested(self) -> bool:
        return self._connection is None or self._connection.congested

    def tell(self, message: Message) -> None:
        """Write it now: small things that must not wait behind results."""
        if isinstance(message, Numbered):
            self.link.written(message)
        self._write(message)

    def post(self, message: Numbered) -> None:
        """Write it behind all that was posted before, as soon as the socket takes it."""
        self._queue.add(self.link.outbox.lane(message), (message,))
        self._pump()

    def begin_beat(self, interval: float) -> None:
        """Welcome has named the heartbeat."""
        self._beat = interval
        self._arm()

    def leave(self, code: int, reason: str) -> None:
        """Say bye and close; `closed` follows when the gateway has answered, or 5 s later. Nothing is heard more."""
        self._left = self.by_us = True
        self._disarm()
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
            self.tell(self._queue.take())

    # -- the one timer -----------------------------------------------------------------------------

    def _arm(self) -> None:
        self._disarm()
        due = min(self._due(), self._heard + SILENCE * self._beat)
        self._timer = self._loop.call_at(due, self._tick)

    def _due(self) -> float:
        """When to beat: after an interval without a word of ours, or without one of the gateway's, which may have
        nothing to say to all that we send.
        """
        return min(self._sent, max(self._heard, self._asked)) + self._beat

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._heard + SILENCE * self._beat:
            self._lose(CloseCode.SILENT, f"nothing was heard for {SILENCE:g} heartbeats")
            return
        if now >= self._due():
            self._asked = now
            self._write(Hb(ts=int(now * 1_000_000), rtt=self._rtt))
        self._arm()

    def _lose(self, code: int, why: str) -> None:
        """End the link from this side, without waiting for a peer that may be gone."""
        self.leave(code, why)
        self._over(code, why)

    def _unclosed(self, bye: Bye) -> None:
        """The gateway said bye and did not close."""
        self._left = True
        if self._connection is not None:
            self._connection.close(CloseCode.NORMAL)
        self._over(bye.code, bye.why)

    def _over(self, code: int, reason: str) -> None:
        self._disarm()
        if not self.closed.done():
            self.closed.set_result((code, reason))

    # -- the carrier's listener --------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        self._connection = connection
        self._heard = self._asked = self._loop.time()
        self._write(self._hello)
        self._arm()

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        if self._left:
            return
        self._heard = self._loop.time()
        try:
            message = bounded(self._codec.decode(data), self.link.outbox)
            moved = self.link.receive(message)
        except ProtocolViolation as violation:
            logger.error("the gateway broke the protocol: %s", plain(violation.message))
            self._lose(violation.close_code, violation.message)
            return
        if self.link.released:
            for released in self.link.released:
                self._queue.add(self.link.outbox.lane(released), (released,))
            self.link.released.clear()
            self._pump()
        if moved:
            self._receiver.moved(moved)
        match message:
            case Cmd():
                self._receiver.commanded(message)
            case Cancel():
                self._receiver.cancelled(message)
            case Hb(echo=int(echo)):
                self._rtt = max(0.0, self._heard * 1000 - echo / 1000)
            case Welcome():
                self.welcome.set_result(message)
                self._welcomed(self, message)
            case Drain() if not self.drain.done():
                self.drain.set_result(message)
            case Bye():
                self.bye = message
                self._disarm()
                self._timer = self._loop.call_later(BYE_TIMEOUT, self._unclosed, message)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._connection = None
        if self.bye is not None and code in (CloseCode.NO_STATUS, CloseCode.ABNORMAL):
            code, reason = self.bye.code, self.bye.why  # it announced the close frame that has not come
        self._over(code, reason)

    def on_silence(self, connection: Connection) -> None:
        """Ours is the protocol's silence, which counts messages."""

    def on_writable(self, connection: Connection) -> None:
        self._pump()

    def on_overflow(self, connection: Connection) -> None:
        self._lose(CloseCode.SLOW_READER, "the gateway does not read what it is sent")
