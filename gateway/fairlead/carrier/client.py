"""The client's end: `connect` opens one WebSocket and gives it to a listener.

The agent SDK, the load swarm and the CLI's shell use it; it imports neither uvicorn nor Starlette. There is
no reconnecting here: when and where to try again is the protocol's business, so every failure to open, from
DNS to a 503, is one `ConnectionRefused` with what the caller needs to decide. An open connection keeps no
task, timer or buffer (≤ 2 KB with its transport), so that one process can be ten thousand agents.
"""

from __future__ import annotations

import asyncio
import os
import ssl as tls
import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import cast
from urllib.parse import urlsplit

from fairlead.carrier.connection import FramedConnection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener
from fairlead.carrier.proxy_tunnel import open_tunnel, parse_proxy
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused
from fairlead.wire import framing, handshake


class ClientConnection(FramedConnection):
    """The client's end of an open WebSocket."""

    __slots__ = ("subprotocol",)

    MASKED = False

    def __init__(
        self, transport: asyncio.Transport, listener: Listener, context: ConnectionContext, agreed: handshake.Agreement
    ) -> None:
        super().__init__(transport, listener, context, deflate=agreed.deflate)
        self.subprotocol = agreed.subprotocol

    def _encode(self, first: int, payload: bytes) -> bytes:
        return framing.encode(first, payload, os.urandom(4))

    def _handshake_done(self) -> None:
        """The server closes; the deadline set with our close frame ends the wait for it."""


async def connect(
    url: str,
    listener: Listener,
    *,
    timer_wheel: TimerWheel,
    subprotocols: Sequence[str] = (),
    headers: Iterable[tuple[str, str]] = (),
    ssl: tls.SSLContext | None = None,
    timeout: float = 10.0,
    max_message: int = 1 << 20,
    max_buffered: int = 1 << 20,
    deflate: bool = False,
    local_address: str | None = None,
    proxy: str | None = None,
) -> ClientConnection:
    """Open `url` (ws:// or wss://) within `timeout` seconds and give the connection to `listener`.

    Raises ConnectionRefused, whatever the reason. `proxy` is an http:// or https:// address that knows CONNECT.
    `local_address` names the source address: one pair of addresses holds some 14,000 connections before Linux
    searches long for a free port.
    """
    secure, host, port, authority, target = _split(url)
    context = ConnectionContext(timer_wheel, max_message, max_buffered, deflate=deflate)
    key = handshake.new_key(os.urandom(16))
    head = handshake.request(authority, target, key, subprotocols=subprotocols, headers=headers, deflate=deflate)
    loop = asyncio.get_running_loop()
    opening = _Opening(listener, context, head, key, subprotocols, loop)
    tls_context = (ssl or _default_tls()) if secure else None
    through = parse_proxy(proxy) if proxy is not None else None
    outcome: ClientConnection | ConnectionRefused | None = None
    try:
        async with asyncio.timeout(timeout):
            if through is None:
                await loop.create_connection(
                    opening.itself,
                    host,
                    port,
                    ssl=tls_context,
                    server_hostname=host if secure else None,
                    local_addr=(local_address, 0) if local_address else None,
                )
            else:
                outer = (ssl or _default_tls()) if through.secure else None
                tunnel = await open_tunnel(through, host, port, outer, local_address)
                await opening.take(tunnel, tls_context, host)
            outcome = await opening.outcome
        if isinstance(outcome, ConnectionRefused):
            raise outcome
        return outcome
    except TimeoutError as error:
        raise ConnectionRefused(f"{url} did not answer within {timeout:g} s") from error
    except UnicodeError as error:
        raise ConnectionRefused(f"{url} cannot be reached: {host!r} is no legal host name ({error})") from error
    except tls.SSLCertVerificationError as error:
        raise ConnectionRefused(
            f"{url} shows a certificate that is not trusted: {error.verify_message}; "
            "name the authority that signed it as ca_file, or correct the host in the URL"
        ) from error
    except (OSError, tls.SSLError) as error:
        raise ConnectionRefused(f"{url} cannot be reached: {error}") from error
    finally:
        if not isinstance(outcome, ClientConnection):
            opening.abandon()
        # A traceback refers to this frame and the frame to the error: without this, each refusal is a cycle.
        del outcome, opening


def _split(url: str) -> tuple[bool, str, int, str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.username is not None:
        raise ValueError(f"{url!r} is not a ws:// or wss:// URL of a host (credentials go into headers)")
    secure = parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return secure, parts.hostname, port, parts.netloc, target


def _advice(response: handshake.Response) -> str:
    """What to do about an answer that no gateway gives to an upgrade that reached it whole."""
    status, headers = response.status, response.headers
    if status == 404:
        return (
            ": no link is served under this address, or something on the way has dropped `Upgrade: websocket`; check "
            "the URL, whose path is /v1/link unless a proxy adds to it, and that proxies pass Upgrade and Connection"
        )
    if 300 <= status < 400:
        return (
            f": it redirects to {headers.get('location', 'nowhere')}; give the agent that address, as ws:// or wss://"
        )
    if status in (400, 405) or status < 300 or (status == 426 and "sec-websocket-protocol" not in headers):
        return (
            ": something on the way probably dropped `Upgrade: websocket`, as a proxy or load balancer does that "
            "passes no WebSockets; let it pass the headers Upgrade and Connection, or connect past it"
        )
    return ""


@cache
def _default_tls() -> tls.SSLContext:
    """The system's roots, read once: a context of its own costs each connection 20 ms and some hundred KB."""
    return tls.create_default_context()


class _Opening(asyncio.Protocol):
    """The protocol until the answer; then the connection takes the transport and this is freed."""

    def __init__(
        self,
        listener: Listener,
        context: ConnectionContext,
        head: bytes,
        key: bytes,
        subprotocols: Sequence[str],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.outcome: asyncio.Future[ClientConnection | ConnectionRefused] = loop.create_future()
        self._listener = listener
        self._context = context
        self._head = head
        self._key = key
        self._subprotocols = subprotocols
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._refusal: handshake.Response | None = None

    def itself(self) -> _Opening:
        """The factory that `create_connection` wants."""
        return self

    async def take(self, tunnel: asyncio.Transport, tls_context: tls.SSLContext | None, host: str) -> None:
        """Go on over `tunnel`, with TLS in it if there is a `tls_context`."""
        self._transport = tunnel  # what is abandoned now
        if tls_context is None:
            tunnel.set_protocol(self)
            self.connection_made(tunnel)
            return
        inner = await self.outcome.get_loop().start_tls(tunnel, self, tls_context, server_hostname=host)
        if inner is None:
            raise ConnectionRefused("the connection was lost before TLS was set up: closed by the proxy")
        self.connection_made(inner)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._refusal is None:
            try:
                self._answered()
            except ConnectionRefused as refused:
                self._settle(refused)
        else:
            self._refused(self._refusal, ended=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refusal is not None:
            self._refused(self._refusal, ended=True)
        self._settle(ConnectionRefused(f"the connection was lost before the answer: {exc or 'closed by the server'}"))

    def abandon(self) -> None:
        """Nobody waits any more: the connection, if there is one, is dropped."""
        self.outcome.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _answered(self) -> None:
        parsed = handshake.parse_response(self._received)
        if parsed is None:
            return
        response, self._received = parsed
        if response.status != 101:
            self._refusal = response
            self._refused(response, ended=False)
            return
        agreed = handshake.agreement(response, self._key, self._subprotocols, self._context.deflate)
        if self.outcome.done():
            return
        transport = cast(asyncio.Transport, self._transport)
        connection = ClientConnection(transport, self._listener, self._context, agreed)
        transport.set_protocol(connection)
        self._transport = None
        self.outcome.set_result(connection)
        connection.start(self._received)

    def _refused(self, response: handshake.Response, *, ended: bool) -> None:
        body = handshake.refusal_body(response, self._received, ended=ended)
        if body is None:
            return
        wait = handshake.retry_after(response.headers.get("retry-after"), time.time())
        message = f"the gateway refused the upgrade with {response.status}{_advice(response)}"
        self._settle(ConnectionRefused(message, response.status, wait, body))

    def _settle(self, outcome: ConnectionRefused) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)
