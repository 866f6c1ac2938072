"""Which values of Host and Origin a port accepts.

The guard checks them before the token. A browser sends the Host that the author of a page chose (DNS rebinding) and
names the page in Origin; agents and programs of a platform send no Origin. A request with an Origin is therefore
refused unless its origin is listed. With a development token, which is public, only names of this machine are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fairlead.errors import Forbidden
from fairlead.settings import is_loopback

REMEMBERED = 64
"""Values of Host whose check is not repeated: clients of a port use one or two. Only accepted ones are remembered."""

_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9a-f:.]++)\]|(?P<name>[^\[\]:/@?#\s]++))(?::[0-9]*+)?")
"""Nothing in it is tried twice: a stranger may send 64 KB of dots, and a node that takes the square of that time is
gone."""


class HostRules:
    """The accepted hosts and origins of a port.

    `hosts` are names and addresses without a port; `*.example.com` stands for all subdomains, and an empty list accepts
    any host. `origins` are written as browsers send them, `https://console.example.com`. With `loopback_only`, only
    `hosts` and the loopback names of this machine are accepted.
    """

    def __init__(self, hosts: Sequence[str] = (), origins: Sequence[str] = (), *, loopback_only: bool = False) -> None:
        self._hosts = frozenset(host for host in hosts if not host.startswith("*."))
        self._suffixes = tuple(host[1:] for host in hosts if host.startswith("*."))
        self._origins = frozenset(origins)
        self._loopback_only = loopback_only
        self._any = not hosts and not loopback_only
        self._accepted: set[bytes] = set()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises Forbidden if the Host or Origin header is not accepted."""
        host = None
        origins = []
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
        if not self._any and host not in self._accepted:
            self._check_host(host or b"")
        for origin in origins:
            if self._trusts(origin.lower()):
                continue
            raise Forbidden(
                f"origin {_shown(origin)} is not allowed: programs send no Origin header; to allow a web page or a "
                "library that does, add its origin to allowed_origins"
            )

    def _check_host(self, given: bytes) -> None:
        host = given.decode("latin-1")
        if not self._knows(_without_port(host.lower())):
            self._refuse_host(host)
        if len(self._accepted) < REMEMBERED:
            self._accepted.add(given)

    def _knows(self, host: str) -> bool:
        if host in self._hosts or (self._suffixes and host.endswith(self._suffixes)):
            return True
        return self._loopback_only and is_loopback(host)

    def _trusts(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        scheme, separator, host = origin.partition("://")
        return (
            self._loopback_only
            and bool(separator)
            and scheme in ("http", "https", "ws", "wss")
            and is_loopback(_without_port(host))
        )

    def _refuse_host(self, host: str) -> None:
        if self._loopback_only:
            raise Forbidden(
                f"host {_shown(host)} is not allowed: the development token works only on this machine; "
                "use 127.0.0.1 or localhost, or set a token of your own"
            )
        raise Forbidden(f"host {_shown(host)} is not allowed: use one of the names in allowed_hosts, or add this one")


def _without_port(host: str) -> str:
    """Remove the port, brackets and a final dot, as in `example.com:80` and `[::1]:80`. Returns "" for an invalid
    value, such as an address followed by other text."""
    found = _AUTHORITY.fullmatch(host)
    return (found["address"] or found["name"].rstrip(".")) if found else ""


def _shown(text: str) -> str:
    return repr(text[:80])
