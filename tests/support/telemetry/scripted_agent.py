"""A link that says exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from websockets.asyncio.client import ClientConnection

from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK, Hb, Message

from support.telemetry.node import Node
from support.telemetry.platform_api import TIMEOUT

M = TypeVar("M", bound=Message)


class ScriptedLink:
    """One link that says exactly what a test wants it to say."""

    def __init__(self, socket: ClientConnection, agent: str) -> None:
        self.socket = socket
        self._codec = agent_codec(SUBPROTOCOL_MSGPACK)
        self.agent = agent

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await self.socket.send(self._codec.encode(message))

    async def expect(self, kind: type[M]) -> M:
        """The next message of `kind`; others are passed over."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                message = self._codec.decode(await self.socket.recv())
                if isinstance(message, kind):
                    return message

    async def trips(self, *seconds: float) -> None:
        """Report round trips, and see them taken."""
        for n, trip in enumerate(seconds, 1):
            await self.send(Hb(ts=n, rtt=trip * 1000))
            assert (await self.expect(Hb)).echo == n

    async def close(self) -> None:
        await self.socket.close()


class DialLink(Protocol):
    """Links a scripted agent, which is welcomed at once."""

    def __call__(self, node: Node, agent: str, conn: int = ..., *, max_queue: int = ...) -> Awaitable[ScriptedLink]: ...
