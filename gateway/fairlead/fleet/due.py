"""When the keeper must look at a command again: one sorted set per shard, popped by any node.

Written at dispatch and by the keeper itself. An entry is only a time to look: what is then done follows from the
record, so looking twice, or late, changes nothing. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fairlead.fleet import lua, schema
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, text

TAKEN_MS = 10_000
"""Long enough to act on a batch; if the keeper dies, another takes it then."""
BATCH = 64


class Due:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    def schedule(self, command: str, agent: str, at: int) -> asyncio.Future[Reply]:
        """Look at this target at `at` (ms). Scheduling again moves the time."""
        return self._store.submit("ZADD", schema.due_key(schema.due_shard(command)), at, f"{command} {agent}")

    def done(self, command: str, agent: str) -> asyncio.Future[Reply]:
        """The target is over: never look again."""
        return self._store.submit("ZREM", schema.due_key(schema.due_shard(command)), f"{command} {agent}")

    def take(self) -> Awaitable[tuple[int, list[tuple[str, str]]]]:
        """What is due in all shards: (Redis TIME in ms, [(command, agent) …])."""
        replies = [
            self._store.run(lua.TAKE_DUE, (schema.due_key(shard),), (BATCH, TAKEN_MS))
            for shard in range(schema.DUE_SHARDS)
        ]
        return self._taken(replies)

    async def _taken(self, replies: list[asyncio.Future[Reply]]) -> tuple[int, list[tuple[str, str]]]:
        now = 0
        taken: list[tuple[str, str]] = []
        for reply in replies:
            answer = items(await reply)
            now = integer(answer[0])
            for member in answer[1:]:
                command, _, agent = text(member).partition(" ")
                taken.append((command, agent))
        return now, taken
