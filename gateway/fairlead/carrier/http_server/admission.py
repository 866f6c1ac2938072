"""Admission: how many connections without a valid token may be open, in total and from one address.

`http_connection` adds each connection when it is made. The connection is removed when one of its requests has shown a
valid token, when its upgrade was accepted, or when it is lost. When there is no room, a new connection is accepted and
the one that has been without a token for the longest time is closed: an honest client shows its token within a round
trip, an attacker never does. The same object bounds the bytes that were received ahead of the request that is being
answered. One `Admission` serves all ports of an event loop that share a limit. It knows no tokens and writes no
answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from fairlead.telemetry.logs import LogAggregator

logger = logging.getLogger("fairlead.carrier")

LIMIT: Final = 1_000
ADMIN_LIMIT: Final = 128
"""Connections to the admin port: probes and scrapers are a few, and each takes one at a time."""
REQUESTS: Final = 8
"""Requests that a connection may send without a valid token; with the last one it is closed. Enough for a person who
corrects a token, too few to keep a connection for nothing."""
LIFETIME: Final = 60.0
"""Seconds that a connection may live without a valid token."""
PACE: Final = 0.01
"""Seconds between the answer to a request and the next one that was sent ahead of it, on a connection without a token:
who does not wait for answers is served at 100 requests a second."""
AHEAD: Final = 8 << 20
"""Bytes of all connections together that were received and belong to requests that are not being answered yet."""
AUTHENTICATED: Final = "fairlead.authenticated"
"""In scope["extensions"] of a request: a function to be called when the request has shown a valid token."""
UNCOUNTED: Final = "a trusted proxy or a local socket"


def authenticated(scope: Mapping[str, Any]) -> None:
    """An application calls this when a request has shown a valid token: its connection is no longer counted."""
    tell = (scope.get("extensions") or {}).get(AUTHENTICATED)
    if tell is not None:
        tell()


def admin_admission() -> Admission:
    """For the admin port: nobody shows a token there, and a scraper comes again and again on one connection."""
    return Admission(ADMIN_LIMIT, requests=None, lifetime=None, what="on the admin port")


class Admission:
    """`limit`: connections without a valid token, in all; `per_address` of one address, half of `limit` unless given.

    `requests` and `lifetime` bound one such connection; None where nobody shows a token, as on the admin port.
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
        what: str = "without a valid token",
    ) -> None:
        self.limit = limit
        self.per_address = max(limit // 2, 1) if per_address is None else per_address
        self.requests = requests
        self.lifetime = lifetime
        self.pace = pace
        self.evicted = 0
        """Connections closed to make room, and those that would have passed the budget for bytes."""
        self._what = what
        self._open: dict[asyncio.Transport, str] = {}
        """In order of arrival, with the key of the address."""
        self._by_address: dict[str, dict[asyncio.Transport, None]] = {}
        self._held: dict[asyncio.Transport, int] = {}
        """Bytes that were received ahead; who has added none for the longest time comes first."""
        self.ahead = 0
        """Bytes that were received ahead of their turn."""
        self._most_ahead = ahead
        self._log_aggregator = LogAggregator(logger)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, transport: asyncio.Transport) -> bool:
        return transport in self._open

    def add(self, transport: asyncio.Transport, key: str) -> None:
        """A connection was made. `key` is that of its address, "" when no ceiling of one address holds for it."""
        self._open[transport] = key
        self._join(transport, key)
        if len(self._open) > self.limit:
            self._evict(next(iter(self._open)), f"of {self.limit} {self._what} in all")

    def discard(self, transport: asyncio.Transport) -> None:
        """It has shown a valid token, or is lost."""
        key = self._open.pop(transport, None)
        if key is not None:
            self._leave(transport, key)

    def rename(self, transport: asyncio.Transport, key: str) -> None:
        """A trusted proxy has named the client that this connection now speaks for. It is the youngest again."""
        old = self._open.pop(transport, None)
        if old is None:
            return
        self._open[transport] = key
        if old != key:
            self._leave(transport, old)
            self._join(transport, key)

    def hold(self, transport: asyncio.Transport, count: int) -> None:
        """`transport` holds `count` bytes ahead of their turn. When all together are too many, one that has shown no
        valid token is closed, or this one when all of them have shown one."""
        self.ahead += count - self._held.pop(transport, 0)
        if count:
            self._held[transport] = count
            if self.ahead > self._most_ahead:
                victim = next((one for one in self._held if one in self._open), transport)
                key = self._open.get(victim, "")
                self.discard(victim)
                self.ahead -= self._held.pop(victim)
                self._close(victim, key, f"{self._most_ahead} bytes were received ahead of their turn")

    def aclose(self) -> None:
        """Log what was not logged yet."""
        self._log_aggregator.aclose()

    def _join(self, transport: asyncio.Transport, key: str) -> None:
        if not key:
            return
        group = self._by_address.setdefault(key, {})
        group[transport] = None
        if len(group) > self.per_address:
            self._evict(next(iter(group)), f"of {self.per_address} {self._what} from one address")

    def _leave(self, transport: asyncio.Transport, key: str) -> None:
        group = self._by_address.get(key)
        if group is not None:
            group.pop(transport, None)
            if not group:
                del self._by_address[key]

    def _evict(self, transport: asyncio.Transport, limit: str) -> None:
        key = self._open[transport]
        self.discard(transport)
        self._close(transport, key, f"it was the oldest {limit}")

    def _close(self, transport: asyncio.Transport, key: str, why: str) -> None:
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
