"""Events that a sink could not deliver in time, in Redis: the newest of each sink, each with what was wrong.

`routing.sinks` adds them, and the API lists, removes and sends them again. A letter has the whole event, because the
events of the fleet make room long before somebody looks. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from fairlead.fleet.events.event_groups import key_beside_events
from fairlead.fleet.events.event_log import Position, StoredEvent
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.script import load
from fairlead.store.store import Store

LETTERS_LIMIT: Final = 1_000
BYTES_LIMIT: Final = 8 << 20
"""What is kept of one sink."""
KEPT_MS: Final = 30 * 24 * 3600_000
"""How long letters are kept after the last one."""

ADD = load("fairlead.fleet.events", "scripts/add_dead_letter")
REMOVE = load("fairlead.fleet.events", "scripts/remove_dead_letters")


class DeadLetter(NamedTuple):
    """`error` is that of the last of `attempts`. `id` is the letter's own; "" before it is added."""

    event: StoredEvent
    attempts: int
    error: str
    id: str = ""


class _Stored(msgspec.Struct, array_like=True):
    position: str
    agent: str
    type: str
    event: str
    at: int
    payload: bytes
    attempts: int
    error: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class DeadLetters:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, tenant: str, sink: str, letter: DeadLetter) -> int:
        """Returns how many old ones made room."""
        event = letter.event
        raw = _encode(
            _Stored(
                str(event.position), event.agent, event.type, event.id, event.at, event.payload, letter.attempts,
                letter.error,
            )
        )  # fmt: skip
        reply = await self._store.run(
            ADD, _keys(tenant, sink), (raw, LETTERS_LIMIT, BYTES_LIMIT, KEPT_MS), priority=Priority.RESULTS
        )
        return integer(reply)

    async def count(self, tenant: str, sink: str) -> int:
        return integer(await self._store.submit("XLEN", _keys(tenant, sink)[0], priority=Priority.BACKGROUND))

    async def read(self, tenant: str, sink: str, after: Position, count: int) -> list[DeadLetter]:
        """The letters after the one with this id, the oldest first."""
        key = _keys(tenant, sink)[0]
        reply = await self._store.submit(
            "XRANGE", key, f"({after}", "+", "COUNT", count, priority=Priority.BACKGROUND, expected=count << 12
        )
        return [_letter(entry) for entry in items(reply)]

    async def find(self, tenant: str, sink: str, ids: Sequence[Position]) -> list[DeadLetter]:
        """Those that there are of these."""
        key = _keys(tenant, sink)[0]
        found = [
            self._store.submit("XRANGE", key, str(id), str(id), priority=Priority.BACKGROUND, expected=64 << 10)
            for id in dict.fromkeys(ids)
        ]
        return [_letter(entry) for reply in await asyncio.gather(*found) for entry in items(reply)]

    async def remove(self, tenant: str, sink: str, ids: Sequence[str]) -> int:
        """Returns how many of them there were."""
        return integer(await self._store.run(REMOVE, _keys(tenant, sink), ids)) if ids else 0


def _letter(entry: Reply) -> DeadLetter:
    id, fields = items(entry)
    one = _decode(octets(items(fields)[1]))
    event = StoredEvent(Position.parse(one.position), one.agent, one.type, one.event, one.at, one.payload)
    return DeadLetter(event, one.attempts, one.error, text(id))


def _keys(tenant: str, sink: str) -> tuple[str, str]:
    letters, size = key_beside_events("fl1:dead_letters", tenant), key_beside_events("fl1:dead_letter_bytes", tenant)
    return f"{letters}:{sink}", f"{size}:{sink}"
