"""The responses that this server writes itself, without the application's or uvicorn's help, as bytes.

`websocket_upgrade` accepts and denies upgrades with them; `http_connection` refuses requests. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from fairlead.wire.websocket import handshake

_ILLEGAL_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}

Headers = Iterable[tuple[bytes, bytes]]


def checked(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the application's headers as a list. Raises RuntimeError if one of them would break the response."""
    result = list(headers)
    for name, value in result:
        if _ILLEGAL_VALUE.search(name) or _ILLEGAL_VALUE.search(value):
            raise RuntimeError(f"control character in the response header {name!r}")
    return result


def switching_protocols(key: bytes, subprotocol: str | None, deflate: str | None, headers: Headers) -> bytes:
    """The response 101 to the upgrade request with the Sec-WebSocket-Key `key`. `deflate` is the agreed extension."""
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"upgrade: websocket",
        b"connection: Upgrade",
        b"sec-websocket-accept: " + handshake.accept_key(key),
    ]
    if subprotocol:
        lines.append(b"sec-websocket-protocol: " + subprotocol.encode("ascii"))
    if deflate is not None:
        lines.append(b"sec-websocket-extensions: " + deflate.encode())
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def denial(status: int, headers: Headers, body: bytes) -> bytes:
    """The response to an upgrade that is not accepted. The connection is closed after it."""
    lines = [b"HTTP/1.1 %d %s" % (status, _PHRASES.get(status, b""))]
    # RFC 9110 §15.5.22: a 426 names the protocol to upgrade to, and Upgrade is announced in Connection.
    if status == 426:
        lines += [b"upgrade: websocket", b"connection: upgrade, close"]
    else:
        lines.append(b"connection: close")
    lines.append(b"content-length: %d" % len(body))
    own_headers = {b"connection", b"content-length", b"transfer-encoding"} | ({b"upgrade"} if status == 426 else set())
    for name, value in headers:
        if name.lower() not in own_headers:
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def refusal(status: int, text: str) -> bytes:
    """The response to a request that is not passed to the application: one line of text. The connection is closed
    after it.
    """
    return denial(status, [(b"content-type", b"text/plain; charset=utf-8")], text.encode() + b"\n")
