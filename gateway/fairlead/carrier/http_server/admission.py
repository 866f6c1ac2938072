"""Admission: how many connections without a valid token may be open, in total and from one address.

`http_connection` adds each connection when it is made. The connection is removed when one of its requests has shown a
valid token, when its upgrade was accepted, or when it is lost. When there is no room, a new connection is accepted and
the one that has been without a token for the longest time is closed: an honest client shows its token within a round
trip, an attacker never does. The same object bounds the bytes that were received ahead of the request that is being
answered. One `Admission` serves all ports of an event loop that share a limit. It checks no tokens and writes no
answers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from fairlead.telemetry.logs import LogAggregator

logger = logging.getLogger("fairlead.carrier")

LIMIT: Final = 1_000
ADMIN_LIMIT: Final = 128
"""The most connections to the admin port. There are only a few probes and scrapers, and each uses one at a time."""
REQUESTS: Final = 8
"""Requests that a connection may send without a valid token; the last one closes it. This is enough for a person who
corrects a token, and too few to keep a connection open without one."""
LIFETIME: Final = 60.0
"""Seconds that a connection may stay open without a valid token."""
PACE: Final = 0.01
"""Seconds between the answer to a request and the start of the next one that was sent ahead of that answer, on a
connection without a token. A client that does not wait for answers is thus served at 100 requests a second."""
AHEAD: Final = 8 << 20
"""The most bytes, of all connections together, that may be received for requests that are not being answered yet."""
AUTHENTICATED: Final = "fairlead.authenticated"
"""The key in scope["extensions"] of a function to call when the request has shown a valid token."""
UNCOUNTED: Final = "a trusted proxy or a local socket"


def authenticated(scope: Mapping[str, Any]) -> None:
    """Stop counting the connection of a request. An application calls this when the request has shown a valid token."""
    tell = (scope.get("extensions") or {}).get(AUTHENTICATED)
    if tell is not None:
        tell()


def admin_admission() -> Admission:
    """Return the `Admission` of the admin port, where nobody shows a token and a scraper keeps using one connection."""
    return Admission(ADMIN_LIMIT, requests=None, lifetime=None, kind="on the admin port")


class Abortable(Protocol):
    """The transport of a connection, or its socket while it has no transport."""

    def abort(self) -> None: ...


class Admission:
    """Bounds the connections without a valid token: `limit` in total and `per_address` from one address (by default
    half of `limit`).

    `requests` and `lifetime` bound one such connection. They are None where nobody shows a token, as on the admin port.
    """

    def __init__(
        self,
        limit: int = LIMIT,
        per_address: int | None = None,
        *,
        requests: int | None = REQUESTS,
        lifetime: float | None = LIFETIME,
        pace: float = PACE,
        ahead: int = AHEAD,
        kind: str = "without a valid token",
    ) -> None:
        self.limit = limit
        self.per_address = max(limit // 2, 1) if per_address is None else per_address
        self.requests = requests
        self.lifetime = lifetime
        self.pace = pace
        self.evicted = 0
        """The number of connections that were closed to make room for connections or for bytes received ahead."""
        self._kind = kind
        self._open: dict[Abortable, str] = {}
        """The connections in order of arrival, each with the key of its address."""
        self._by_address: dict[str, dict[Abortable, None]] = {}
        self._held: dict[Abortable, int] = {}
        """The bytes that each connection received ahead. The one that has added none for the longest time is first."""
        self.ahead = 0
        """The number of bytes that all connections together received ahead of their turn."""
        self._most_ahead = ahead
        self._log_aggregator = LogAggregator(logger)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, transport: Abortable) -> bool:
        return transport in self._open

    def add(self, transport: Abortable, key: str) -> None:
        """Count a new connection. `key` is the key of its address, or "" if no limit per address applies to it."""
        self._open[transport] = key
        self._join(transport, key)
        if len(self._open) > self.limit:
            self._evict(next(iter(self._open)), f"of {self.limit} {self._kind} in total")

    def discard(self, transport: Abortable) -> None:
        """Stop counting a connection that has shown a valid token or is lost."""
        key = self._open.pop(transport, None)
        if key is not None:
            self._leave(transport, key)

    def rename(self, transport: Abortable, key: str) -> None:
        """Count the connection for the client that a trusted proxy has named. It counts as the youngest again."""
        old = self._open.pop(transport, None)
        if old is None:
            return
        self._open[transport] = key
        if old != key:
            self._leave(transport, old)
            self._join(transport, key)

    def hold(self, transport: Abortable, count: int) -> None:
        """Record that `transport` holds `count` bytes ahead of their turn. If all connections together hold too many,
        one that has shown no valid token is closed, or this one if all of them have shown a token.
        """
        self.ahead += count - self._held.pop(transport, 0)
        if count:
            self._held[transport] = count
            if self.ahead > self._most_ahead:
                evicted = next((one for one in self._held if one in self._open), transport)
                key = self._open.get(evicted, "")
                self.discard(evicted)
                self.ahead -= self._held.pop(evicted)
                self._close(evicted, key, f"{self._most_ahead} bytes were received ahead of their turn")

    def aclose(self) -> None:
        """Log the events that were not logged yet."""
        self._log_aggregator.aclose()

    def _join(self, transport: Abortable, key: str) -> None:
        if not key:
            return
        group = self._by_address.setdefault(key, {})
        group[transport] = None
        if len(group) > self.per_address:
            self._evict(next(iter(group)), f"of {self.per_address} {self._kind} from one address")

    def _leave(self, transport: Abortable, key: str) -> None:
        group = self._by_address.get(key)
        if group is not None:
            group.pop(transport, None)
            if not group:
                del self._by_address[key]

    def _evict(self, transport: Abortable, limit: str) -> None:
        key = self._open[transport]
        self.discard(transport)
        self._close(transport, key, f"it was the oldest {limit}")

    def _close(self, transport: Abortable, key: str, why: str) -> None:
        self.evicted += 1
        self._log_aggregator.note(
            "connections closed to make room",
            f"from {key or UNCOUNTED}",
            logging.WARNING,
            "closed a connection from %s to make room: %s",
            key or UNCOUNTED,
            why,
        )
        transport.abort()
