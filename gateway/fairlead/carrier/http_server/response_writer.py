"""One request and its response, as ASGI sees them: uvicorn's cycle, with fewer writes.

`ParserCallbacks` makes one for each request. uvicorn writes the head of a response at once and the body afterwards,
which are two system calls and often two packets. Here the head waits for the first event of the body, as the ASGI
specification asks of servers, and both leave in one write. An application that wants its head sent before it has any
content sends an empty body event.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPResponseBodyEvent, HTTPResponseStartEvent

Lines = tuple[bytes, int, bool | None, bool]
"""The lines of some headers, the Content-Length or 0, whether the body is chunked (None if no header says how it ends),
and whether the connection closes after it."""

KNOWN_HEADERS = 64
"""Sets of headers whose lines are remembered. Streams of results and most other answers have a handful of them."""
BODILESS = frozenset({204, 304})
"""Statuses whose responses have no body (RFC 9110 §6.4.1)."""


class ResponseWriter(RequestResponseCycle):
    """A cycle whose response leaves in as few writes as its events allow."""

    _head = b""
    """The head of the response while it waits for the body."""

    async def send(self, message: ASGISendEvent) -> None:
        """Raises RuntimeError for an event out of place and for a body that contradicts its Content-Length."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}: the response is complete")
        expected = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != expected:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}: expected {expected!r}")
        if self.response_started:
            self._write(cast("HTTPResponseBodyEvent", message))
        else:
            self._start(cast("HTTPResponseStartEvent", message))

    def _start(self, message: HTTPResponseStartEvent) -> None:
        """Build the head of the response."""
        status, headers = message["status"], message.get("headers", ())
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.access_log:
            self.access_logger.info(
                '%s - "%s %s HTTP/%s" %d',
                get_client_addr(self.scope),
                self.scope["method"],
                get_path_with_query_string(self.scope),
                self.scope["http_version"],
                status,
            )
        lines, length, chunked, close = _lines(headers)
        head = STATUS_LINE[status] + _lines(self.default_headers)[0] + lines
        self.chunked_encoding = chunked
        self.expected_content_length = length
        if close:
            self.keep_alive = False
        elif not self.keep_alive:
            head += b"connection: close\r\n"
        if chunked is None and self.scope["method"] != "HEAD" and status not in BODILESS:
            self.chunked_encoding = True
            head += b"transfer-encoding: chunked\r\n"
        self._head = head + b"\r\n"

    def _write(self, message: HTTPResponseBodyEvent) -> None:
        """Write a part of the body, and the head before the first part."""
        body, more = message.get("body", b""), message.get("more_body", False)
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            data = head
        elif self.chunked_encoding:
            data = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
            if not more:
                data += b"0\r\n\r\n"
        else:
            if len(body) > self.expected_content_length:
                raise RuntimeError("the body of the response is longer than its Content-Length")
            self.expected_content_length -= len(body)
            data = head + body
        if data:
            self.transport.write(data)
        if more:
            return
        if self.expected_content_length:
            raise RuntimeError("the body of the response is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _lines(headers: Iterable[Iterable[bytes]]) -> Lines:
    try:
        return _known_lines(tuple(headers))
    except TypeError:  # ASGI allows pairs that are lists, which have no hash
        return _known_lines(tuple([(name, value) for name, value in headers]))


@lru_cache(KNOWN_HEADERS)
def _known_lines(headers: tuple[Iterable[bytes], ...]) -> Lines:
    """Raises RuntimeError for an invalid name or value."""
    lines, length, chunked, close = [], 0, None, False
    for name, value in headers:
        if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
            raise RuntimeError(f"invalid HTTP header {name!r}: expected a token and a value without control characters")
        field = name.lower()
        if field == b"content-length" and chunked is None:
            length, chunked = int(value), False
        elif field == b"transfer-encoding" and value.lower() == b"chunked":
            length, chunked = 0, True
        elif field == b"connection":
            close = close or b"close" in [token.strip() for token in value.lower().split(b",")]
        lines += [field, b": ", value, b"\r\n"]
    return b"".join(lines), length, chunked, close
