"""What is done when the parser has found a part of a request: the head is checked, the body is passed on or discarded.

`HttpConnection` inherits it and feeds the parser. A callback refuses a request with an exception, which the parser
passes to whoever feeds it. Nothing here answers, or decides what is fed next.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import is_ssl

from fairlead.carrier.http_server.admission import AUTHENTICATED
from fairlead.carrier.http_server.client_address import ends_of
from fairlead.carrier.http_server.connection_limits import ConnectionLimits
from fairlead.carrier.http_server.request.body import RequestBody
from fairlead.carrier.http_server.request.head import MAX_HEADERS, SINGLE, RequestRefused, check_head
from fairlead.carrier.http_server.response_writer import ResponseWriter

if TYPE_CHECKING:
    from fairlead.carrier.http_server.uvicorn_server import ServerConfig


KNOWN_TARGETS: Final = 64
"""Request targets whose parts are remembered. Most requests go to a handful of them."""


class SecondRequest(Exception):
    """A second request begins in the data that was fed as one, since only the parser knows a chunked body's length."""


class ParserCallbacks(HttpToolsProtocol):
    """uvicorn's callbacks with our rules. Its state is that of the request which is being parsed."""

    config: ServerConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        # The same as in uvicorn, except for the addresses and the flow control.
        self.connections.add(self)
        self.transport = transport
        self.server, self.client = ends_of(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._limits = ConnectionLimits(self.config, transport, self.client[0] if self.client else "")
        self._body = RequestBody()
        self._complete = False
        """True if all of the request was fed. The answer may still be incomplete."""
        self._seen: dict[bytes, bytes] = {}

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _authenticated(self) -> None:
        """This request, and with it the connection, has shown a valid token."""
        self._limits.authenticated()

    def on_message_begin(self) -> None:
        if self._complete:
            raise SecondRequest
        super().on_message_begin()
        self._seen = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._body.open:
            return  # a trailer is not a header (RFC 9110 §6.5.1), because no proxy has checked it
        name = name.lower()
        if name in SINGLE:
            if name in self._seen:
                raise RequestRefused(400, f"A request has one {name.decode()}.")
            self._seen[name] = value
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if len(self.headers) >= MAX_HEADERS:
            raise RequestRefused(431, f"A request has at most {MAX_HEADERS} header lines.")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        limits = self._limits
        limits.head_received()
        upgrade = self.parser.should_upgrade() and self._should_upgrade()
        version = self.parser.get_http_version()
        check_head(version, self.url, self._seen, upgrade)
        if limits.proxied:
            client = limits.client_of(self.headers)
            self.scope["client"] = (client, 0) if client else self.client
        if upgrade:
            return
        if limits.anonymous:
            self.scope["extensions"] = {AUTHENTICATED: self._authenticated}  # type: ignore[dict-item]  # a function
        self._begin_cycle(version)
        length = self._seen.get(b"content-length")
        if length is not None or b"transfer-encoding" in self._seen:
            self._body.begin(length)
        if not limits.may_ask_again():
            self.cycle.keep_alive = False

    def _begin_cycle(self, version: str) -> None:
        """Give the request to the application, as uvicorn does, but with our `ResponseWriter`."""
        scope = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"], scope["raw_path"], scope["query_string"] = parse_target(self.url)
        self.cycle = ResponseWriter(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        if not self._answering:
            self._discard(len(body))
            return
        cycle = self.cycle
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _discard(self, count: int) -> None:
        if not self._body.discard(count):
            self.transport.abort()

    def on_message_complete(self) -> None:
        self._complete = True
        if self._body.open:
            self._body.end()
            self._limits.body_received()
        if self._answering:
            self.cycle.more_body = False
            self.cycle.message_event.set()


@lru_cache(KNOWN_TARGETS)
def parse_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a request's target, the path as it was sent, and the query."""
    parsed = httptools.parse_url(target)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
