"""One connection of the agent: hello, welcome, heartbeats, and what comes in handed to the agent.

It is the carrier's listener. A session that was replaced hears nothing any more: its `core` is taken away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from fairlead.carrier.listener import Connection
from fairlead.errors import ProtocolViolation
from fairlead.wire.agent_link import AgentLink
from fairlead.wire.close import Close
from fairlead.wire.codec import Codec
from fairlead.wire.messages import (
    Bye,
    Cancel,
    Chunk,
    Cmd,
    Credit,
    Drain,
    End,
    FromGateway,
    Hb,
    Hello,
    Message,
    Numbered,
    Retry,
    Welcome,
)

logger = logging.getLogger("fairlead.agent")


class Core(Protocol):
    """What a session tells the agent."""

    def welcomed(self, session: Session, welcome: Welcome) -> None: ...
    def commanded(self, cmd: Cmd) -> None: ...
    def input(self, message: Chunk | End) -> None: ...
    def granted(self, credit: Credit) -> None: ...
    def cancelled(self, cancel: Cancel) -> None: ...


class Session:
    def __init__(self, codec: Codec[FromGateway], link: AgentLink, hello: Hello, core: Core) -> None:
        self._codec = codec
        self.link = link
        self._hello = hello
        self.core: Core | None = core
        self.connection: Connection | None = None
        loop = asyncio.get_running_loop()
        self.welcome: asyncio.Future[Welcome] = loop.create_future()
        self.closed: asyncio.Future[tuple[int, str]] = loop.create_future()
        self.leave: asyncio.Future[Drain] = loop.create_future()
        """The gateway asks this agent to go elsewhere."""
        self.retry_ms: int | None = None
        """When to come back, if the gateway said so in its bye."""
        self.retry: Retry | None = None
        self.rtt_ms: float | None = None
        self.last_sent = 0.0

    @property
    def ready(self) -> bool:
        return self.link.ready and self.connection is not None and not self.connection.closing

    def send(self, message: Message) -> None:
        if self.connection is not None:
            self.last_sent = time.monotonic()
            self.connection.send(self._codec.encode(message))

    def send_numbered(self, message: Numbered) -> None:
        self.link.written(message)
        self.send(message)

    def beat(self) -> None:
        """One heartbeat, which the gateway answers at once."""
        self.send(Hb(ts=int(time.monotonic() * 1000), rtt=self.rtt_ms))

    def close(self, code: int, reason: str) -> None:
        """Say bye and close; `closed` follows."""
        if self.connection is not None and not self.connection.closing:
            self.send(Bye(code=code, why=reason))
            self.connection.close(code, reason)

    # -- the carrier's listener --------------------------------------------------------------------

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self.send(self._hello)

    def on_message(self, connection: Connection, data: bytes | str) -> None:
        core = self.core
        if core is None:
            return
        try:
            message = self._codec.decode(data)
            self.link.receive(message)
        except ProtocolViolation as violation:
            logger.error("the gateway broke the protocol: %s", violation.message)
            self.close(violation.close_code, violation.message)
            return
        match message:
            case Cmd():
                core.commanded(message)
            case Credit():
                core.granted(message)
            case Chunk() | End():
                core.input(message)
            case Cancel():
                core.cancelled(message)
            case Hb(echo=int(echo)):
                self.rtt_ms = max(0.0, time.monotonic() * 1000 - echo)
            case Welcome():
                core.welcomed(self, message)
                self.welcome.set_result(message)
            case Drain():
                if message.retry is not None:
                    self.retry = message.retry
                if not self.leave.done():
                    self.leave.set_result(message)
            case Bye():
                self.retry_ms = message.retry

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.connection = None
        if not self.closed.done():
            self.closed.set_result((code, reason))

    def on_silence(self, connection: Connection) -> None:
        logger.warning("nothing was heard from the gateway for 2.5 heartbeats")
        connection.abort()

    def on_writable(self, connection: Connection) -> None:
        pass

    def on_overflow(self, connection: Connection) -> None:
        # What is stored nowhere yet stays in the outbox and is sent on the next link.
        logger.warning("the gateway does not read what it is sent")
        connection.close(Close.SLOW_READER, "the gateway does not read")
