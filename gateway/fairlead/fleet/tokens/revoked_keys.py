"""The keys of agents that were revoked lately, in Redis: one sorted set by time, for all nodes.

A key is listed for longer than any credential lives. Afterwards the binding alone refuses it (see `agent_keys`). Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from fairlead.fleet import schema
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, text
from fairlead.store.store import Store
from fairlead.text import plain

logger = logging.getLogger(__name__)

KEPT_MS: Final = 8 * 24 * 3600_000
"""A day longer than the longest life of a credential."""
KEYS_LIMIT: Final = 20_000
"""Keys at a time, at some 150 bytes each. Whoever has to revoke more replaces the issuer's key."""


class RevokedKey(NamedTuple):
    at: int
    """Redis TIME in ms."""
    thumbprint: str
    agent: str


class RevokedKeys:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, keys: Iterable[RevokedKey], now: int) -> asyncio.Future[Reply]:
        """Store keys; one that is stored already is left alone. Those that are not needed at `now` are removed."""
        self._store.submit("ZREMRANGEBYSCORE", schema.REVOKED_KEYS, "-inf", now - KEPT_MS)
        members = [part for key in keys for part in (key.at, f"{key.at} {key.thumbprint} {key.agent}")]
        return self._store.write("ZADD", schema.REVOKED_KEYS, "NX", *members)

    def since(self, at: int) -> Answer[frozenset[RevokedKey]]:
        """The keys that were revoked after `at` (ms)."""
        reply = self._store.submit("ZRANGEBYSCORE", schema.REVOKED_KEYS, f"({at}", "+inf", priority=Priority.CONTROL)
        return Answer(reply, _parse)

    def count(self, at: int) -> Answer[int]:
        """How many keys were revoked after `at` (ms)."""
        return Answer(
            self._store.submit("ZCOUNT", schema.REVOKED_KEYS, f"({at}", "+inf", priority=Priority.CONTROL), integer
        )


def _parse(reply: Reply) -> frozenset[RevokedKey]:
    found = []
    for member in items(reply):
        parts = text(member).split(" ")
        if len(parts) == 3 and parts[0].isdecimal():
            found.append(RevokedKey(int(parts[0]), parts[1], parts[2]))
        else:
            logger.warning("a revoked key in Redis is not valid, so it is skipped: %s", plain(text(member)[:64]))
    return frozenset(found)
