"""The opening handshake of RFC 6455 §4 as bytes: the client's request, the parsing of the response, and the accept key.

The client and the server (`websocket_upgrade`) of `fairlead.carrier` call it. It opens no socket and generates no key:
16 random bytes and the time are arguments. It deliberately parses only a small part of HTTP, one response to one
upgrade request with a limit on its head, because nothing else may follow on such a connection.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from fairlead.errors import ConnectionRefused

GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MAX_HEAD: Final = 16 << 10
"""The maximum size of a response's head. Proxies add a few hundred bytes of headers; none adds 16 KiB."""
MAX_BODY: Final = 4 << 10
"""How much of a refusal's body is kept: enough for an error in JSON and for the first lines of a proxy's error page."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def new_key(randomness: bytes) -> bytes:
    """Create a Sec-WebSocket-Key from 16 random bytes."""
    if len(randomness) != 16:
        raise ValueError(f"a key is made of 16 random bytes, got {len(randomness)}")
    return b64encode(randomness)


def is_key(key: bytes) -> bool:
    """Whether `key` is the base64 encoding of 16 bytes, as §4.1 requires."""
    try:
        return len(key) == 24 and len(b64decode(key, validate=True)) == 16
    except Base64Error:
        return False


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept value for a client's key."""
    return b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())


def tokens(value: str) -> list[str]:
    """Split a comma-separated header into a list without empty items."""
    return [token for item in value.split(",") if (token := item.strip())]


def request(
    host: str,
    target: str,
    key: bytes,
    *,
    subprotocols: Sequence[str] = (),
    headers: Iterable[tuple[str, str]] = (),
    deflate: bool = False,
) -> bytes:
    """Build the upgrade request. Raises ValueError for a header with control characters, such as a line end."""
    lines = [
        f"GET {target} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key.decode()}",
        "Sec-WebSocket-Version: 13",
    ]
    if subprotocols:
        lines.append(f"Sec-WebSocket-Protocol: {', '.join(subprotocols)}")
    if deflate:
        lines.append(f"Sec-WebSocket-Extensions: {DEFLATE}")
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"invalid header name {name!r}: expected an HTTP token")
        lines.append(f"{name}: {value}")
    for line in lines:
        if _UNPRINTABLE.search(line):
            raise ValueError(f"control character in {line.split(':')[0]!r} of an upgrade request")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Response(msgspec.Struct, frozen=True):
    """The head of a response. Header names are in lower case; repeated headers are joined with commas."""

    status: int
    headers: dict[str, str]


class Agreement(msgspec.Struct, frozen=True):
    """What both ends agreed on in a successful handshake."""

    subprotocol: str | None
    deflate: bool


def parse_response(data: bytes) -> tuple[Response, bytes] | None:
    """Parse the head; returns it with the data that follows it, or None while it is incomplete. Raises
    ConnectionRefused if it is not HTTP."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        if len(data) >= MAX_HEAD:
            raise ConnectionRefused(f"answer to the upgrade has a head of more than {MAX_HEAD} bytes")
        if data and not data.startswith(b"HTTP/1."[: len(data)]):
            raise ConnectionRefused("answer to the upgrade is not HTTP/1.x")
        return None
    lines = data[:end].split(b"\r\n")
    status = _STATUS_LINE.fullmatch(lines[0])
    if status is None:
        raise ConnectionRefused("answer to the upgrade has no HTTP/1.x status line")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        raw_name, colon, raw_value = line.partition(b":")
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
        if not colon or not _TOKEN.fullmatch(name) or _UNPRINTABLE.search(value):
            raise ConnectionRefused("answer to the upgrade has an illegal header line")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Response(int(status[1]), headers), data[end + 4 :]


def agreement(response: Response, key: bytes, subprotocols: Sequence[str] = (), deflate: bool = False) -> Agreement:
    """What both ends agreed on in a 101 response. Raises ConnectionRefused if the response violates §4.1, which fails
    the connection."""
    headers = response.headers
    if headers.get("upgrade", "").lower() != "websocket":
        raise ConnectionRefused("the 101 answer does not upgrade to websocket", response.status)
    if "upgrade" not in [token.lower() for token in tokens(headers.get("connection", ""))]:
        raise ConnectionRefused("the 101 answer has no 'Connection: Upgrade'", response.status)
    if headers.get("sec-websocket-accept", "").encode("latin-1") != accept_key(key):
        raise ConnectionRefused("the 101 answer has a wrong Sec-WebSocket-Accept", response.status)
    chosen = headers.get("sec-websocket-protocol")
    if chosen is not None and chosen not in subprotocols:
        raise ConnectionRefused(f"the 101 answer chose subprotocol {chosen!r}, which was not offered", response.status)
    # The caller's own string, which all its connections share: one of each answer would take 70 bytes of a connection.
    subprotocol = None if chosen is None else subprotocols[subprotocols.index(chosen)]
    extensions = headers.get("sec-websocket-extensions")
    if extensions is None:
        return Agreement(subprotocol, deflate=False)
    name, *parameters = [part.strip() for part in extensions.split(";")]
    # Any other extension would need memory per connection or was not offered.
    if not deflate or name != "permessage-deflate" or "server_no_context_takeover" not in parameters:
        raise ConnectionRefused(
            f"the 101 answer chose extensions {extensions!r}, which were not offered", response.status
        )
    known = {"server_no_context_takeover", "client_no_context_takeover"}
    if any(p not in known and not p.startswith("server_max_window_bits=") for p in parameters):
        raise ConnectionRefused(
            f"the 101 answer chose extensions {extensions!r}, which were not offered", response.status
        )
    return Agreement(subprotocol, deflate=True)


def retry_after(value: str | None, now: float) -> float | None:
    """Parse Retry-After, a number or a date, into seconds from `now` (Unix time). None if it is invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def refusal_body(response: Response, received: bytes, *, ended: bool) -> bytes | None:
    """The body of a refusal, truncated to 4 KiB; None while more of it is expected."""
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        body, complete = _dechunk(received)
    else:
        length = response.headers.get("content-length", "")
        size = int(length) if re.fullmatch("[0-9]{1,18}", length) else MAX_BODY
        body, complete = received[:size], len(received) >= size
    return body[:MAX_BODY] if complete or ended or len(body) >= MAX_BODY else None


def _dechunk(received: bytes) -> tuple[bytes, bool]:
    body = b""
    while received:
        line, newline, rest = received.partition(b"\r\n")
        digits = line.partition(b";")[0].strip()
        if not newline or not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
            return body, bool(newline)  # an invalid chunk ends the body: nothing after it can be trusted
        size = int(digits, 16)
        if size == 0:
            return body, True
        body += rest[:size]
        received = rest[size + 2 :]
    return body, False


DEFLATE: Final = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
"""The only supported form of RFC 7692: no context is kept between messages, in either direction."""


def accept_deflate(offers: str) -> str | None:
    """The response to a client's Sec-WebSocket-Extensions; None if none of its offers is supported."""
    for offer in tokens(offers):
        name, *parameters = [part.strip() for part in offer.split(";")]
        if name != "permessage-deflate" or len(set(parameters)) != len(parameters):
            continue
        answer = DEFLATE
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            value = value.strip('"')
            if key in ("server_no_context_takeover", "client_no_context_takeover") and not value:
                continue
            if key == "client_max_window_bits" and value in _WINDOW_BITS | {""}:
                continue  # it may be ignored: `frames.inflate` accepts every window
            if key == "server_max_window_bits" and value in _WINDOW_BITS and int(value) >= 12:
                answer += "; server_max_window_bits=12"  # what `frames.deflate` uses
                continue
            break
        else:
            return answer
    return None


_WINDOW_BITS: Final = {str(bits) for bits in range(8, 16)}
