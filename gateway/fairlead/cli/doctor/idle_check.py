"""Checks how long a link may be silent. It uses a real link, because a gateway closes a connection that never says
hello.

Used by `link_checks`. Meanwhile an agent called DOCTOR is in the fleet. A proxy on the way may close a silent
connection, or drop its state without closing it, so the link sends a heartbeat at the end and expects an answer.
"""

from __future__ import annotations

import asyncio
import os
import time

from fairlead.carrier.listener import Connection
from fairlead.cli.doctor.checks import CheckFailed
from fairlead.errors import ProtocolViolation
from fairlead.version import __version__
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hb, Hello, Message, Welcome

DOCTOR = "fairlead-doctor"
"""The id is the same for all doctors, because the fleet remembers an agent for a month."""
WELCOME_TIMEOUT = 30.0
"""Seconds: the gateway may have to wait for Redis."""
ECHO_TIMEOUT = 5.0
"""Seconds for the answer to a heartbeat."""
SILENT = 2.5
"""Heartbeats of silence after which the gateway itself closes a link."""


async def check_idle(link: IdleLink, most: float) -> str:
    """Say hello, be silent for `most` seconds, and send a heartbeat. Returns the finding; raises CheckFailed."""
    link.send(Hello(agent=DOCTOR, boot=os.urandom(8).hex(), conn=1, sdk=f"fairlead-doctor {__version__}"))
    welcome = await link.received(Welcome, WELCOME_TIMEOUT)
    if not isinstance(welcome, Welcome):
        raise CheckFailed(f"no welcome: {link.describe_end(WELCOME_TIMEOUT)}", "check the gateway's log, and its Redis")
    heartbeat = welcome.hb / 1000
    began = time.monotonic()
    lost = await link.closed_within(most)
    silent = time.monotonic() - began
    if lost and link.code == CloseCode.SILENT:
        return f"a link may be silent for {silent:.0f} s; then the gateway itself closed it, as it should"
    if lost and silent > heartbeat:
        return (
            f"something on the way closes a link after {silent:.0f} s of silence; agents send a heartbeat every "
            f"{heartbeat:g} s, so this is enough"
        )
    if lost:
        raise CheckFailed(
            f"something on the way closed a link after {silent:.1f} s of silence ({link.describe_end(silent)}), and "
            f"agents send a heartbeat only every {heartbeat:g} s",
            f"raise the idle timeout of the proxy or load balancer above {SILENT * heartbeat:.0f} s (nginx: "
            f"proxy_read_timeout, HAProxy: timeout tunnel), or set the gateway's heartbeat below {silent / 2:.1f} s",
        )
    link.send(Hb(ts=1))
    if await link.received(Hb, ECHO_TIMEOUT) is None:
        raise CheckFailed(
            f"the link was dead after {silent:.0f} s of silence, without any notice "
            f"({link.describe_end(ECHO_TIMEOUT)})",
            f"something on the way forgets connections: set the gateway's heartbeat below {silent / 2:.1f} s",
        )
    return f"a link may be silent for {silent:.0f} s; agents send a heartbeat every {heartbeat:g} s"


class IdleLink:
    """The listener of one link: the last message of each kind, and how the link was closed."""

    def __init__(self) -> None:
        self.code: int | None = None
        """The close code, None while the link is open."""
        self._reason = ""
        self._codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self._connection: Connection | None = None
        self._messages: dict[type[Message], Message] = {}
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    def send(self, message: Message) -> None:
        assert self._connection is not None
        self._connection.send(self._codec.encode(message))

    async def received(self, kind: type[Message], timeout: float) -> Message | None:
        """Wait for a message of that kind; None if the link closes first or it takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while kind not in self._messages and self.code is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._messages.get(kind)

    async def closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def describe_end(self, seconds: float) -> str:
        """How the link was closed, or that nothing came within `seconds`."""
        if self.code is None:
            return f"nothing came within {seconds:g} s"
        if self.code == CloseCode.ABNORMAL:
            return "the connection was lost"
        return f"closed with {self.code} {self._reason}".strip()

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        try:
            decoded = self._codec.decode(message)
        except ProtocolViolation as e:
            connection.close(e.close_code, e.message[:100])
            return
        if decoded is not None:
            self._messages[type(decoded)] = decoded
            self._changed.set()

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.code, self._reason = code, reason
        self._closed.set()
        self._changed.set()

    def on_silence(self, connection: Connection) -> None: ...

    def on_writable(self, connection: Connection) -> None: ...

    def on_overflow(self, connection: Connection) -> None: ...
