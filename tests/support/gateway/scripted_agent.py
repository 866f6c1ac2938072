"""An agent that does exactly what a test says, on the `websockets` library: also what the SDK never would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import (
    Chunk,
    Cmd,
    FromGateway,
    Hello,
    Message,
    Welcome,
)

from support.gateway.process import TIMEOUT, GatewayProcess

AGENT_TOKEN = "development-agent-token"


M = TypeVar("M", bound=Message)


class ScriptedAgent:
    """One connection that does exactly what the test says."""

    def __init__(self, socket: ClientConnection, subprotocol: str, agent: str) -> None:
        self.socket = socket
        self.agent = agent
        self.codec = agent_codec(subprotocol)
        self.welcome: Welcome | None = None

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await self.socket.send(self.codec.encode(message))

    async def greet(self, boot: str = "boot-1", conn: int = 1, **more: object) -> Welcome:
        await self.send(msgspec.structs.replace(Hello(agent=self.agent, boot=boot, conn=conn), **more))
        self.welcome = await self.expect(Welcome)
        return self.welcome

    async def receive(self) -> FromGateway:
        async with asyncio.timeout(TIMEOUT):
            while True:
                message = self.codec.decode(await self.socket.recv())
                if message is not None:
                    return message

    async def expect(self, kind: type[M]) -> M:
        """The next message of `kind`; others are passed over."""
        while True:
            message = await self.receive()
            if isinstance(message, kind):
                return message

    async def command(self) -> Cmd:
        return await self.expect(Cmd)

    async def send_output(self, command: str, n: int, text: str) -> None:
        """Send `text` as chunk `n` of the command's output."""
        await self.send(Chunk(id=command, n=n, kind="stdout", payload=text.encode()))

    async def close_code(self) -> int:
        """Read on until the gateway closes; returns the code."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    await self.socket.recv()
        except websockets.ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006


class DialAgent(Protocol):
    def __call__(
        self, gateway: GatewayProcess, agent: str = ..., subprotocol: str = ..., **options: Any
    ) -> Awaitable[ScriptedAgent]: ...
