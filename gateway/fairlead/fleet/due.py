"""When the keeper must look at a command again: one sorted set per shard, popped by any node.

Written at dispatch and by the keeper itself. An entry is only a time to look: what is then done follows from the
record, so looking twice, or late, changes nothing. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from fairlead.fleet import lua, schema
from fairlead.store.answer import outcomes
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, text

TAKEN_MS = 10_000
"""Long enough to act on a batch; if the keeper dies, another takes it then."""
BATCH = 64


@dataclass(frozen=True, slots=True)
class Taken:
    """A target that is due, taken at `at` (Redis TIME in ms)."""

    command: str
    agent: str
    at: int


class Due:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    def schedule(self, command: str, agent: str, at: int) -> asyncio.Future[Reply]:
        """Look at this target at `at` (ms), or sooner if that was asked for before."""
        return self._store.submit("ZADD", schema.due_key(schema.due_shard(command)), "LT", at, f"{command} {agent}")

    def put_off(self, command: str, agent: str, taken: int, at: int) -> asyncio.Future[Reply]:
        """The keeper has looked, having taken it at `taken`: look again at `at` (ms), or sooner if meanwhile asked."""
        key = schema.due_key(schema.due_shard(command))
        return self._store.run(lua.PUT_OFF, (key,), (f"{command} {agent}", taken + TAKEN_MS, at))

    def done(self, command: str, agent: str) -> asyncio.Future[Reply]:
        """The target is over: never look again."""
        return self._store.submit("ZREM", schema.due_key(schema.due_shard(command)), f"{command} {agent}")

    def take(self) -> Awaitable[list[Taken]]:
        """What is due in all shards."""
        replies = [
            self._store.run(lua.TAKE_DUE, (schema.due_key(shard),), (BATCH, TAKEN_MS))
            for shard in range(schema.DUE_SHARDS)
        ]
        return self._taken(replies)

    async def _taken(self, replies: list[asyncio.Future[Reply]]) -> list[Taken]:
        taken: list[Taken] = []
        failure: Exception | None = None
        for answer in await outcomes(replies):
            if isinstance(answer, Exception):
                failure = answer
                continue
            now, *members = items(answer)
            for member in members:
                command, _, agent = text(member).partition(" ")
                taken.append(Taken(command, agent, integer(now)))
        if failure is not None and not taken:
            raise failure  # one shard that cannot be read must not keep the others waiting
        return taken
