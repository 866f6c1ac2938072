"""The client's end of a WebSocket: `connect` opens one connection and gives it to a listener.

The agent SDK and the CLI's shell use `connect`, and the load swarm, which has many connections, `open_connection`. This
module imports neither uvicorn nor Starlette. It never reconnects, because the protocol decides when and where to try
again. Every failure to open a connection, from DNS to a 503, is therefore one `ConnectionRefused` with what the caller
needs for that decision. An open connection keeps no task, timer or buffer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl as tls
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias, cast
from urllib.parse import urlsplit

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.connection_problem import advise_on, describe_problem
from fairlead.carrier.epoll.client_socket import connecting_socket
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.listener import Listener
from fairlead.carrier.proxy_tunnel import open_tunnel, parse_proxy
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.transport_connection import TransportConnection
from fairlead.errors import ConnectionRefused
from fairlead.wire.websocket import frames, handshake

NOT_CONNECTED = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
"""The errors of a socket that was given to the poller while it was connecting, and could not connect."""


OnAnswer: TypeAlias = Callable[[Mapping[str, str]], None]
"""Called with the headers of the answer to the upgrade request; names are in lower case."""


class ClientConnection(TransportConnection):
    """The client's end of an open WebSocket."""

    __slots__ = ("subprotocol",)

    MASKED = False

    def __init__(
        self, transport: asyncio.Transport, listener: Listener, context: ConnectionContext, agreed: handshake.Agreement
    ) -> None:
        super().__init__(transport, listener, context, deflate=agreed.deflate)
        self.subprotocol = agreed.subprotocol

    def _encode(self, first: int, payload: bytes) -> bytes:
        return frames.encode(first, payload, os.urandom(4))

    def _handshake_done(self) -> None:
        """Do nothing: the server closes the transport. The timeout that began with our close frame ends the wait."""


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
    on_answer: OnAnswer | None = None,
) -> ClientConnection:
    """Open `url` (ws:// or wss://) within `timeout` seconds and give the connection to `listener`.

    Raises ConnectionRefused for every failure to connect. `proxy` is the http:// or https:// address of a proxy that
    supports CONNECT. `local_address` is the source address to use: one pair of addresses holds some 14,000 connections
    before Linux needs long to find a free port. `on_answer` gets the headers of the answer before `listener` gets the
    connection.
    """
    context = ConnectionContext(timer_wheel, max_message, max_buffered, deflate=deflate)
    return await open_connection(
        url, listener, context, subprotocols=subprotocols, headers=headers, ssl=ssl, timeout=timeout,
        local_address=local_address, proxy=proxy, on_answer=on_answer,
    )  # fmt: skip


async def open_connection(
    url: str,
    listener: Listener,
    context: ConnectionContext,
    *,
    subprotocols: Sequence[str] = (),
    headers: Iterable[tuple[str, str]] = (),
    ssl: tls.SSLContext | None = None,
    timeout: float = 10.0,
    local_address: str | None = None,
    proxy: str | None = None,
    poller: Poller | None = None,
    on_answer: OnAnswer | None = None,
) -> ClientConnection:
    """Open a connection as `connect` does, for a process with many of them, which share one `context`.

    With a `poller`, a connection without TLS and without a proxy keeps its bare socket there instead of a transport of
    the event loop, which takes ten times the memory.
    """
    secure, host, port, authority, target = _split(url)
    key = handshake.new_key(os.urandom(16))
    head = handshake.request(
        authority, target, key, subprotocols=subprotocols, headers=headers, deflate=context.deflate
    )
    opening = _Opening(listener, context, head, key, subprotocols, on_answer)
    tls_context = (ssl or _default_tls()) if secure else None
    through = parse_proxy(proxy) if proxy is not None else None
    outcome: ClientConnection | ConnectionRefused | OSError | None = None
    try:
        async with asyncio.timeout(timeout):
            if through is not None:
                outer = (ssl or _default_tls()) if through.secure else None
                tunnel = await open_tunnel(through, host, port, outer, local_address)
                await opening.take(tunnel, tls_context, host)
            elif poller is not None and tls_context is None:
                opening.begin(poller.adopt(await connecting_socket(host, port, local_address)))
            else:
                await opening.connect(host, port, tls_context, local_address)
            outcome = await opening.outcome
        if not isinstance(outcome, ClientConnection):
            raise outcome
        return outcome
    except (OSError, UnicodeError) as error:
        raise ConnectionRefused(f"{url} {describe_problem(error, host, timeout)}") from error
    finally:
        if not isinstance(outcome, ClientConnection):
            opening.abandon()
        # The traceback refers to this frame and the frame to the error. Without this line, each refusal would leave a
        # reference cycle.
        del outcome, opening


def _split(url: str) -> tuple[bool, str, int, str, str]:
    parts = urlsplit(url)
    if parts.username is not None:
        raise ValueError("invalid URL with credentials: expected ws:// or wss:// and a host (put them into headers)")
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(f"invalid URL {url!r}: expected ws:// or wss:// and a host")
    secure = parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authority = parts.netloc
    if not authority.isascii():
        try:
            authority = parts.hostname.encode("idna").decode() + f":{parts.port}" * bool(parts.port)
        except UnicodeError as error:
            raise ConnectionRefused(f"{url} {describe_problem(error, parts.hostname, 0)}") from error
    return secure, parts.hostname, port, authority, target


@cache
def _default_tls() -> tls.SSLContext:
    """Return a context with the system's root certificates, which are read once. A separate context would cost each
    connection 20 ms and some hundred KB.
    """
    return tls.create_default_context()


class _Opening(asyncio.Protocol):
    """The asyncio protocol of a connection until the server has answered. Then a `ClientConnection` takes over the
    transport, and this object is freed.
    """

    def __init__(
        self,
        listener: Listener,
        context: ConnectionContext,
        head: bytes,
        key: bytes,
        subprotocols: Sequence[str],
        on_answer: OnAnswer | None,
    ) -> None:
        self.outcome: asyncio.Future[ClientConnection | ConnectionRefused | OSError]
        self.outcome = asyncio.get_running_loop().create_future()
        self._listener = listener
        self._context = context
        self._head = head
        self._key = key
        self._subprotocols = subprotocols
        self._on_answer = on_answer
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._refusal: handshake.Response | None = None

    async def connect(self, host: str, port: int, tls_context: tls.SSLContext | None, local: str | None) -> None:
        """Connect directly, from the address `local` if there is one, and with TLS if there is a `tls_context`."""
        await self.outcome.get_loop().create_connection(
            lambda: self,
            host,
            port,
            ssl=tls_context,
            server_hostname=host if tls_context is not None else None,
            local_addr=(local, 0) if local else None,
        )

    async def take(self, tunnel: asyncio.Transport, tls_context: tls.SSLContext | None, host: str) -> None:
        """Continue the handshake over `tunnel`, with TLS inside it if there is a `tls_context`."""
        self._transport = tunnel  # from here on `abandon` aborts the tunnel
        if tls_context is None:
            self.begin(tunnel)
            return
        inner = await self.outcome.get_loop().start_tls(tunnel, self, tls_context, server_hostname=host)
        if inner is None:
            raise ConnectionRefused("the connection was lost before TLS was set up: closed by the proxy")
        self.connection_made(inner)

    def begin(self, transport: asyncio.Transport) -> None:
        """Begin the handshake on a transport that is connected already."""
        transport.set_protocol(self)
        self.connection_made(transport)

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
            self._refused(self._refusal, ended=len(self._received) > handshake.MAX_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refusal is not None:
            self._refused(self._refusal, ended=True)
        if isinstance(exc, tls.SSLError) or (isinstance(exc, OSError) and exc.errno in NOT_CONNECTED):
            self._settle(exc)  # with TLS 1.3 a server refuses a client's certificate after the client's handshake
        self._settle(ConnectionRefused(f"the connection was lost before the answer: {exc or 'closed by the server'}"))

    def abandon(self) -> None:
        """Drop the connection, if there is one, because nobody waits for it any more."""
        if not self.outcome.cancel() and not self.outcome.cancelled():
            opened = self.outcome.result()
            if isinstance(opened, ClientConnection):  # the caller gave up when it was opened, before it heard of it
                opened.abort()
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
        if self._on_answer is not None:
            self._on_answer(response.headers)
        transport.set_protocol(connection)
        self._transport = None
        self.outcome.set_result(connection)
        connection.start(self._received)

    def _refused(self, response: handshake.Response, *, ended: bool) -> None:
        body = handshake.refusal_body(response, self._received, ended=ended)
        if body is None:
            return
        wait = handshake.retry_after(response.headers.get("retry-after"), time.time())
        message = f"the gateway refused the upgrade with {response.status}{advise_on(response)}"
        self._settle(ConnectionRefused(message, response.status, wait, body))

    def _settle(self, outcome: ConnectionRefused | OSError) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)
