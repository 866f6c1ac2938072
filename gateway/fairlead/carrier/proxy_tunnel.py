"""Tunnels to the gateway through an HTTP proxy: sends CONNECT and interprets the proxy's answer.

`client.open_connection` calls it when it is given a proxy. The result is a transport like any other, over which TLS and
the upgrade work as if there were no proxy. The proxy sees the name of the gateway and, with wss://, nothing else. Its
refusals are distinguished from those of the gateway, because a different person has to fix them.
"""

from __future__ import annotations

import asyncio
import ssl as tls
import time
from base64 import b64encode
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

from fairlead.errors import ConnectionRefused
from fairlead.wire.websocket import handshake


class Proxy(NamedTuple):
    """The address of a proxy. `authorization` is the value of its Proxy-Authorization header, or empty."""

    secure: bool
    host: str
    port: int
    authorization: str

    def __str__(self) -> str:
        """Return the address without the credentials, because it appears in logs."""
        return f"http{'s' * self.secure}://{_authority(self.host, self.port)}"


def parse_proxy(url: str) -> Proxy:
    """Parse the URL of a proxy. Raises ValueError; its text does not repeat the URL, which may contain a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as e:
        raise ValueError("the proxy's address is not valid: expected http://[user:password@]host:port") from e
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/") or parts.query:
        raise ValueError("the proxy's address is not valid: expected http://[user:password@]host:port, or https://…")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    secure = parts.scheme == "https"
    return Proxy(secure, host, port or (443 if secure else 80), authorization)


async def open_tunnel(
    proxy: Proxy, host: str, port: int, ssl: tls.SSLContext | None, local_address: str | None = None
) -> asyncio.Transport:
    """Open a transport to `host` through `proxy`. The caller sets its protocol. `ssl` is for an https:// proxy.

    Raises ConnectionRefused if the proxy cannot be reached or refuses; a refusal carries the proxy's status. The caller
    enforces the timeout.
    """
    loop = asyncio.get_running_loop()
    asking = _ConnectRequest(proxy, _authority(host, port), loop)
    try:
        await loop.create_connection(
            asking.itself,
            proxy.host,
            proxy.port,
            ssl=ssl if proxy.secure else None,
            server_hostname=proxy.host if proxy.secure else None,
            local_addr=(local_address, 0) if local_address else None,
        )
    except OSError as e:
        raise ConnectionRefused(f"the proxy {proxy} cannot be reached: {e}") from e
    try:
        refusal = await asking.outcome
        if refusal is not None:
            raise refusal
        return asking.transport
    except BaseException:
        asking.transport.abort()
        raise


class _ConnectRequest(asyncio.Protocol):
    """The asyncio protocol of the connection until the proxy has answered."""

    transport: asyncio.Transport

    def __init__(self, proxy: Proxy, target: str, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: asyncio.Future[ConnectionRefused | None] = loop.create_future()
        self._proxy = proxy
        self._target = target
        self._received = b""

    def itself(self) -> _ConnectRequest:
        """The protocol factory that `create_connection` requires."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        lines = [f"CONNECT {self._target} HTTP/1.1", f"Host: {self._target}"]
        if self._proxy.authorization:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        self.transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            parsed = handshake.parse_response(self._received)
        except ConnectionRefused as e:
            self._settle(ConnectionRefused(f"{self._proxy} is not an HTTP proxy: {e.message}"))
            return
        if parsed is None:
            return
        response, rest = parsed
        if not 200 <= response.status < 300:
            self._settle(self._refusal(response))
        elif rest:
            # The gateway sends nothing before it has received a request, so an honest tunnel has no data here.
            self._settle(ConnectionRefused(f"the proxy {self._proxy} sent more than its answer to CONNECT"))
        else:
            self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(
            ConnectionRefused(f"the proxy {self._proxy} closed the connection: {exc or 'no answer to CONNECT'}")
        )

    def _refusal(self, response: handshake.Response) -> ConnectionRefused:
        match response.status:
            case 407 if self._proxy.authorization:
                advice = "check the user and the password in its address"
            case 407:
                advice = "put user and password into its address: http://user:password@host:port"
            case 502 | 503 | 504:
                advice = "it cannot reach the gateway itself: look at its log, and at its DNS"
            case _:
                advice = "let it allow CONNECT to that host and port, or use another proxy"
        wait = handshake.retry_after(response.headers.get("retry-after"), time.time())
        message = f"the proxy {self._proxy} refused a tunnel to {self._target} with {response.status}: {advice}"
        return ConnectionRefused(message, response.status, wait)

    def _settle(self, outcome: ConnectionRefused | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def _authority(host: str, port: int) -> str:
    """Return host and port in the form that a request line uses."""
    return f"[{host}]:{port}" if ":" in host else f"{host.encode('idna').decode()}:{port}"
