"""Removes what somebody else has written under a key of the schema, if it is of another type than the schema's.

Nothing of Fairlead can read or write such a key any more: one that all nodes share, such as the set of their
heartbeats, would stop the whole fleet. What was there before is lost since the other value was written, and its
owners write it again: nodes with their next heartbeat, agents with their next claim. The client of Redis calls this
when a command has found a value of another type; the script looks again before it removes anything.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from fairlead.fleet import lua, schema
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, text
from fairlead.store.store import Store
from fairlead.text import plain

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 100
"""Removals that are under way at once. The others follow when their keys are used again."""


class KeyTypes:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._removing: set[bytes] = set()

    def check(self, keys: list[bytes]) -> None:
        """Remove the values of `keys`, on which commands have found another type, unless they are valid by now."""
        for key in keys:
            kind = schema.key_type(_name(key))
            if kind is not None and key not in self._removing and len(self._removing) < MOST_AT_ONCE:
                self._removing.add(key)
                removed = self._store.run(lua.CHECK_TYPE, (key,), (kind,), priority=Priority.CONTROL)
                removed.add_done_callback(partial(self._report, key, kind))

    def _report(self, key: bytes, kind: str, reply: asyncio.Future[Reply]) -> None:
        self._removing.discard(key)
        if reply.cancelled():
            return
        if (error := reply.exception()) is not None:
            logger.error("the key %s in Redis holds no %s, which could not be removed: %s", _name(key), kind, error)
        elif (found := reply.result()) is not None:
            logger.error(
                "the key %s in Redis held a %s, which is not Fairlead's: expected a %s; it was removed, and what the "
                "key held before it is lost",
                _name(key), text(found), kind,
            )  # fmt: skip


def _name(key: bytes) -> str:
    return plain(key.decode(errors="replace"))
