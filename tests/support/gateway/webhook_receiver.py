"""An HTTP endpoint that records what webhooks send to it, and answers as a test says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def signed_by(self, secret: bytes) -> bool:
        """Whether one of its signatures is that of this secret."""
        content = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        made = base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
        return f"v1,{made}" in self.headers["webhook-signature"].split(" ")


@dataclass
class WebhookReceiver:
    """`answer` gives the status for each request; those that are accepted are `accepted` too."""

    answer: Callable[[Received], int | web.Response] = lambda _: 204
    requests: list[Received] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """It answers while this is set, as it is at first."""
    port: int = 0
    scheme: str = "http"

    runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self.open.set()

    @property
    def transports(self) -> list[asyncio.Transport]:
        """Those of the connections that are open now."""
        server = None if self.runner is None else self.runner.server
        connections = [] if server is None else server.connections
        return [transport for one in connections if (transport := one.transport) is not None]

    @property
    def url(self) -> str:
        host = "localhost" if self.scheme == "https" else "127.0.0.1"
        return f"{self.scheme}://{host}:{self.port}/hook"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        one = Received({name.lower(): value for name, value in request.headers.items()}, await request.read())
        self.requests.append(one)
        await self.open.wait()
        status = self.answer(one)
        if isinstance(status, web.Response):
            return status
        if 200 <= status < 300:
            self.accepted.append(one.event["id"])
        return web.Response(status=status)


@asynccontextmanager
async def receiving(context: ssl.SSLContext | None = None) -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver(scheme="http" if context is None else "https")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver._handle)
    runner = receiver.runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        # A connection with TLS that is closed waits for the other end, longer than the test and its event loop last.
        for transport in receiver.transports:
            transport.abort()
        await runner.cleanup()
