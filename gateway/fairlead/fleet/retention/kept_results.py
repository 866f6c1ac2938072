"""The results of ended commands that Redis keeps: how many bytes each shard has, and which ones are to be dropped.

What ends a command notes its results, unless they are small (see record.lua); the result dropper reads the notes and
drops what is due, or too much. Dropping may be repeated. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.fleet import lua, schema
from fairlead.shards import command_shard
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, text
from fairlead.store.store import Store

FOUND: Final = 64
"""Commands of one shard that one call finds, or of which it removes what is noted: Redis takes some 50 µs for it."""
FOUND_BYTES: Final = 64 + FOUND * 100


class KeptShard(msgspec.Struct, frozen=True):
    """`kept` is the bytes of results that a shard keeps, and `to_drop` the commands whose results are to be dropped, as
    Redis notes them."""

    kept: int
    to_drop: list[str]


class KeptResults:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.stored = 0
        """Bytes of what agents have sent and this node has stored, some of which is kept when its command has ended."""

    def size(self, shard: int) -> Answer[int]:
        """The bytes of results that the shard keeps; 0 says that there is nothing to drop."""
        _, _, key = schema.kept_keys(shard)
        return Answer(self._store.submit("GET", key, priority=Priority.BACKGROUND), _size)

    def find(self, shard: int, limit: int) -> Answer[KeptShard]:
        """What the shard keeps, and up to FOUND commands to drop: those that are due, or else the oldest if it keeps
        more than `limit` bytes."""
        reply = self._store.run(
            lua.KEPT_RESULTS, schema.kept_keys(shard), (limit, FOUND), priority=Priority.BACKGROUND,
            expected=FOUND_BYTES,
        )  # fmt: skip
        return Answer(reply, _found)

    def drop(self, noted: str) -> Answer[bool]:
        """Drop the results of a command that `find` has found. The answer is whether this call has dropped them."""
        command, agent, _ = noted.split(" ")
        keys = schema.cmd_key(command), schema.out_key(command), *schema.kept_keys(command_shard(command))
        reply = self._store.run(lua.DROP_RESULTS, keys, (noted, agent), priority=Priority.BACKGROUND)
        return Answer(reply, lambda answer: integer(answer) == 1)


def _size(reply: Reply) -> int:
    return 0 if reply is None else integer(reply)


def _found(reply: Reply) -> KeptShard:
    kept, *noted = items(reply)
    return KeptShard(integer(kept), [text(one) for one in noted])
