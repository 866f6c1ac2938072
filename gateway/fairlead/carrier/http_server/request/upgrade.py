"""The request for a WebSocket in its plainest form, parsed in one step.

`link_acceptor` asks before it accepts a link without an HTTP connection. This module refuses nothing: what is not
exactly the form below (another path or a query, a repeated header, an octet beyond ASCII, a body, a bad key) is None,
and the HTTP connection that gets the same octets decides. So the rules here may be as strict as they like, but must
never be laxer than there: what is parsed here, `http_connection` would have understood in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from fairlead.carrier.http_server.request.head import RequestRefused, check_head
from fairlead.wire.websocket import handshake

MAX_PLAIN_HEAD: Final = 8 << 10
"""The most bytes of such a request. Agents send some 300, and proxies add a few hundred."""

_LINES: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?(?:[!-~](?:[\t -~]*[!-~])?)?\r\n){1,100}\r\n")
"""Header lines in visible ASCII, with no other white space around a value than one space before it."""
_OUT_OF_PLACE: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"expect", b"te", b"trailer", b"http2-settings"}
)


@dataclass(slots=True)  # a frozen one takes three times as long to create
class UpgradeRequest:
    """`scope` has the headers (names in lower case, in their order), the subprotocols that the client offers, and the
    address of the client, under the keys of ASGI.
    """

    scope: dict[str, Any]
    key: bytes
    extensions: str


def parse(head: bytes, path: bytes, client: tuple[str, int] | None) -> UpgradeRequest | None:
    """Parse `head`, a request with the empty line that ends it, for a WebSocket at `path`."""
    start = b"GET " + path + b" HTTP/1.1\r\n"
    if not head.startswith(start) or _LINES.fullmatch(head, len(start)) is None:
        return None
    headers = []
    for line in head[len(start) : -4].split(b"\r\n"):
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.lstrip(b" ")))
    values = dict(headers)
    if len(values) < len(headers) or not _OUT_OF_PLACE.isdisjoint(values):
        return None
    key = values.get(b"sec-websocket-key", b"")
    if (
        values.get(b"upgrade", b"").lower() != b"websocket"
        or values.get(b"connection", b"").lower() not in (b"upgrade", b"keep-alive, upgrade")
        or values.get(b"sec-websocket-version") != b"13"
        or not handshake.is_key(key)
    ):
        return None
    try:
        check_head("1.1", path, values, upgrade=True)
    except RequestRefused:
        return None
    offered = values.get(b"sec-websocket-protocol", b"").decode("ascii")
    scope = {"headers": headers, "client": client, "subprotocols": handshake.tokens(offered)}
    return UpgradeRequest(scope, key, values.get(b"sec-websocket-extensions", b"").decode("ascii"))
