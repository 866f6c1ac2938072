"""The head of an HTTP request: the rules beyond those that the parser enforces.

`http_connection` checks each request on each port, so that all three ports refuse alike. A request that a proxy in
front of this server may have understood differently is refused instead of interpreted: otherwise requests could be
smuggled past the proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

MAX_HEADERS: Final = 100
"""The most header lines of one request, as in Apache's default. Each costs some 150 bytes in addition to its own."""
SINGLE: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""Headers that a request may contain only once."""

_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_NEEDLESS: Final = re.compile(rb"%(?:2[DdEeFf]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaCcFf]|6[1-9A-Fa-f]|7[0-9AaEe])")
"""An encoded octet that needs no encoding in a path (RFC 3986 §2.3), or an encoded slash of either kind, which none of
our names contains. A proxy that filters by path may not recognize such a path."""


class RequestRefused(Exception):
    """The request is answered with `status` and a line of text, and its connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def check_head(version: str, target: bytes, single: Mapping[bytes, bytes], upgrade: bool) -> None:
    """Check the head of a request. Raises RequestRefused. `single` holds those headers of SINGLE that the request has.
    An `upgrade` asks for a WebSocket and must conform to RFC 9110 §7.8 and RFC 6455 §4.1.
    """
    if version not in ("1.1", "1.0"):
        raise RequestRefused(505, "Unsupported version of HTTP: expected HTTP/1.1.")
    host = single.get(b"host")
    if host is None:
        if version == "1.1":
            raise RequestRefused(400, "Host is missing: expected one in each request of HTTP/1.1.")
    elif _HOST.fullmatch(host) is None:
        raise RequestRefused(400, "Invalid Host: expected a name or an address, and the port unless it is the default.")
    coded = b"transfer-encoding" in single
    if coded and (version != "1.1" or b"content-length" in single):
        raise RequestRefused(400, "Invalid Transfer-Encoding: expected HTTP/1.1 and no Content-Length.")
    if not target.startswith(b"/"):
        _check_absolute(target, host)
    if b"%" in target and _NEEDLESS.search(target.partition(b"?")[0]):
        raise RequestRefused(
            400, "Invalid path: expected no encoded slash and no encoded characters that need no encoding."
        )
    if upgrade:
        if version != "1.1":
            raise RequestRefused(400, "Unsupported version of HTTP: expected HTTP/1.1 for an upgrade.")
        if coded or single.get(b"content-length", b"0") != b"0":
            raise RequestRefused(400, "Unexpected body: expected none in a request for a WebSocket.")


def offered_protocol(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the protocol that a request offers to upgrade to. All `Connection` headers count (RFC 9110 §5.3), not only
    the last one.
    """
    connection: set[bytes] = set()
    upgrade = None
    for name, value in headers:
        if name == b"connection":
            connection.update(token.strip() for token in value.lower().split(b","))
        elif name == b"upgrade":
            upgrade = value.lower()
    return upgrade if b"upgrade" in connection else None


def _check_absolute(target: bytes, host: bytes | None) -> None:
    """Check a target of the form `http://host/path`, which clients send to proxies. Its host must equal Host."""
    _, absolute, rest = target.partition(b"://")
    if not absolute or host is None or rest.partition(b"/")[0].lower() != host.lower():
        raise RequestRefused(400, "Invalid target: expected a path.")
