"""A gateway that does exactly what the test says, on a real socket: it refuses attempts, or lets them in as links.

Made by the fixtures `gateway` and `tls_gateway`. It welcomes nobody by itself.
"""

from __future__ import annotations

import asyncio
import ssl as tls
import time
from collections import deque
from http import HTTPStatus
from typing import Unpack

import websockets
from websockets.asyncio.server import Server, ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from fairlead.wire.codec import gateway_codec
from fairlead.wire.messages import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK

from support.agent.scripted_link import TIMEOUT, Link, WelcomeOptions


class Gateway:
    """The server. `refusals` are the answers to the next attempts; when they are used up, all are let in."""

    def __init__(self) -> None:
        self.refusals: deque[tuple[int, dict[str, str]]] = deque()
        self.attempts: list[float] = []
        self.requests: list[Request] = []
        self.links: list[Link] = []
        self._server: Server | None = None
        self._tls = False
        self._next = 0
        self._news = asyncio.Event()

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        self._tls = ssl is not None
        self._server = await websockets.serve(
            self._serve,
            "127.0.0.1",
            0,
            subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK), websockets.Subprotocol(SUBPROTOCOL_JSON)],
            process_request=self._asked,
            compression=None,
            ping_interval=None,
            close_timeout=5,
            max_size=1 << 20,
            ssl=ssl,
        )

    async def stop(self) -> None:
        assert self._server is not None
        for link in self.links:
            link.socket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"wss://localhost:{port}" if self._tls else f"ws://127.0.0.1:{port}"

    def _asked(self, socket: ServerConnection, request: Request) -> Response | None:
        self.attempts.append(time.monotonic())
        self.requests.append(request)
        self._news.set()
        if not self.refusals:
            return None
        status, headers = self.refusals.popleft()
        fields = Headers({"Content-Length": "0", "Connection": "close", **headers})
        return Response(status, HTTPStatus(status).phrase, fields, b"")

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link(socket, gateway_codec(str(socket.subprotocol)))
        self.links.append(link)
        self._news.set()
        await link.read()

    async def attempted(self, count: int) -> None:
        """Wait until the agent has tried so often, refused attempts included."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.attempts) < count:
                self._news.clear()
                await self._news.wait()

    async def accept(self) -> Link:
        """The next connection, not welcomed yet."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.links) <= self._next:
                self._news.clear()
                await self._news.wait()
        self._next += 1
        return self.links[self._next - 1]

    async def linked(self, **welcome: Unpack[WelcomeOptions]) -> Link:
        """The next connection, welcomed: see Link.welcome."""
        link = await self.accept()
        await link.welcome(**welcome)
        return link
