"""How long a link may be silent on its way: tried with a real one, since a gateway closes what does not say hello.

Used by `link_road`. For that time an agent of the name DOCTOR is in the fleet. A path may end a silent connection, or
only forget it and tell nobody: so the link speaks again at the end, and has to be heard.
"""

from __future__ import annotations

import asyncio
import os
import time

from fairlead.carrier.listener import Connection
from fairlead.cli.doctor.endpoint_checks import CheckFailed
from fairlead.errors import ProtocolViolation
from fairlead.version import __version__
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hb, Hello, Message, Welcome

DOCTOR = "fairlead-doctor"
"""One agent for all doctors: the fleet remembers an agent for a month."""
WELCOME = 30.0
"""Seconds: the gateway may have to wait for its store."""
ECHO = 5.0
SILENT = 2.5
"""Heartbeats of silence after which the gateway ends a link by itself."""


async def measure(ear: DoctorLink, most: float) -> str:
    """Say hello, be silent for `most` seconds, and speak again. What came of it, in words; raises CheckFailed."""
    ear.say(Hello(agent=DOCTOR, boot=os.urandom(8).hex(), conn=1, sdk=f"fairlead-doctor {__version__}"))
    welcome = await ear.heard(Welcome, WELCOME)
    if not isinstance(welcome, Welcome):
        raise CheckFailed(f"no welcome: {ear.ending(WELCOME)}", "look at the gateway's log, and at its Redis")
    beat = welcome.hb / 1000
    began = time.monotonic()
    lost = await ear.closed_within(most)
    silent = time.monotonic() - began
    if lost and ear.code == CloseCode.SILENT:
        return f"{silent:.0f} s of silence pass; then the gateway itself ends the link, as it should"
    if lost and silent > beat:
        return f"the path ends what is silent for {silent:.0f} s; agents speak every {beat:g} s, so it is enough"
    if lost:
        raise CheckFailed(
            f"the path ended a link that was silent for {silent:.1f} s ({ear.ending(silent)}); agents speak every "
            f"{beat:g} s only",
            f"raise the idle timeout of the proxy or load balancer above {SILENT * beat:.0f} s (nginx: "
            f"proxy_read_timeout, HAProxy: timeout tunnel), or set the gateway's heartbeat below "
            f"{silent / 2:.1f} s",
        )
    ear.say(Hb(ts=1))
    if await ear.heard(Hb, ECHO) is None:
        raise CheckFailed(
            f"after {silent:.0f} s of silence the path was dead and nobody said so ({ear.ending(ECHO)})",
            f"something on the way forgets connections: set the gateway's heartbeat below {silent / 2:.1f} s",
        )
    return f"{silent:.0f} s of silence pass; agents speak every {beat:g} s"


class DoctorLink:
    """The listener of one link: the last message of each kind, and how it was closed."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._reason = ""
        self._codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self._connection: Connection | None = None
        self._messages: dict[type[Message], Message] = {}
        self._news = asyncio.Event()
        self._closed = asyncio.Event()

    def say(self, message: Message) -> None:
        assert self._connection is not None
        self._connection.send(self._codec.encode(message))

    async def heard(self, kind: type[Message], timeout: float) -> Message | None:
        """The message of that kind, None when the link ends before or it takes too long."""
        try:
            async with asyncio.timeout(timeout):
                while kind not in self._messages and self.code is None:
                    self._news.clear()
                    await self._news.wait()
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

    def ending(self, seconds: float) -> str:
        if self.code is None:
            return f"nothing came within {seconds:g} s"
        return (
            "the connection was lost"
            if self.code == CloseCode.ABNORMAL
            else f"closed with {self.code} {self._reason}".strip()
        )

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        try:
            heard = self._codec.decode(message)
        except ProtocolViolation as e:
            connection.close(e.close_code, e.message[:100])
            return
        if heard is not None:
            self._messages[type(heard)] = heard
            self._news.set()

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.code, self._reason = code, reason
        self._closed.set()
        self._news.set()

    def on_silence(self, connection: Connection) -> None: ...

    def on_writable(self, connection: Connection) -> None: ...

    def on_overflow(self, connection: Connection) -> None: ...
