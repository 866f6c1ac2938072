"""Client addresses: where a connection comes from, and which proxies are trusted to name their client.

`http_connection` uses it for each connection and, behind a trusted proxy, for each request; `app` counts failures and
new links by the same keys. This module opens no connection and resolves no name. Only listed proxies are trusted,
because anybody else can write anything into the forwarding headers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

IPv6_PREFIX: Final = 64
"""The bits of an IPv6 address that identify one customer. One machine commonly gets a whole /64 (RFC 6177)."""
MAX_HOPS: Final = 32
"""The most entries of a forwarding header that are examined, starting at the nearest proxy."""

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;\s]+)', re.IGNORECASE)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


Address = tuple[str, int]


def ends_of(transport: asyncio.BaseTransport) -> tuple[Address | None, Address | None]:
    """Return our address and the peer's. An end without an address, such as a Unix socket, gives None.

    The transport's own socket object is not asked, because uvloop's would keep both answers, 290 bytes, for as long as
    it exists.
    """
    own = transport.get_extra_info("socket")
    if own is None:
        return _inet(transport.get_extra_info("sockname")), _inet(transport.get_extra_info("peername"))
    lent = socket.socket(own.family, own.type, own.proto, own.fileno())
    try:
        return _inet(lent.getsockname()), _inet(lent.getpeername())
    except OSError:  # the connection has been reset already
        return None, None
    finally:
        lent.detach()


def _inet(address: object) -> Address | None:
    """Return host and port of an IPv4 or IPv6 address, without the flow and scope of IPv6, or else None."""
    return (address[0], address[1]) if isinstance(address, tuple) and len(address) in (2, 4) else None


def address_key(address: str) -> str:
    """Return the key that an address is counted by: an IPv4 address itself, the /64 of an IPv6 address, or else ""."""
    if ":" not in address:
        return address
    return _ipv6_key(address)


@lru_cache(4096)
def _ipv6_key(address: str) -> str:
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return ""
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, IPv6_PREFIX)))


class TrustedProxies:
    """The proxies whose X-Forwarded-For (or, in its absence, Forwarded) is honoured: addresses and networks.

    Raises ValueError for an entry that is neither.
    """

    def __init__(self, entries: Sequence[str] = ()) -> None:
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(entry, strict=False) for entry in entries)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address of the client that a trusted proxy speaks for: the nearest one that is not itself trusted,
        or "" if the headers name none. An entry that is not an address ends the search, because no trusted proxy wrote
        the entries beyond it.
        """
        forwarded_for: list[str] = []
        forwarded: list[str] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                forwarded_for += value.decode("latin-1").split(",")
            elif name == b"forwarded":
                forwarded += value.decode("latin-1").split(",")
        named = forwarded_for or [_for_of(element) for element in forwarded]
        last = ""
        for entry in named[: -MAX_HOPS - 1 : -1]:
            address = _without_port(entry.strip())
            if not address:
                return last
            last = address
            if address not in self:
                return address
        return last


def _for_of(element: str) -> str:
    """Return the `for` parameter of one element of a Forwarded header (RFC 7239 §4)."""
    found = _FOR.search(element)
    return found[1].strip('"') if found else ""


def _without_port(entry: str) -> str:
    """Return the address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`, or else ""."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    try:
        return str(ipaddress.ip_address(entry.partition("%")[0]))
    except ValueError:
        return ""
