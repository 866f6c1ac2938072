"""When the command sweeper must look at a command again: one sorted set per shard, popped by any node.

Written at dispatch and by the sweeper itself. An entry is only a time to look: what is done then follows from the
record, so looking twice, or late, changes nothing. Raises BusUnavailable when Redis is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field

from fairlead.fleet import lua, schema
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, text

TAKEN_MS = 10_000
"""Long enough to act on a batch; if the sweeper dies, another one takes it then."""
BATCH = 64
"""Targets that are taken from one shard at once."""
TAKE_BYTES = 64 + BATCH * 80
"""That the answer to it has at most, with ids of the usual length."""


@dataclass(frozen=True, slots=True)
class DueTarget:
    """A target that is due, taken at `at` (Redis TIME in ms)."""

    command: str
    agent: str
    at: int


@dataclass(slots=True)
class DueTargets:
    """What some shards held. `more`: those of them in which more is due. `next`: of each other one that is not empty,
    when its first entry is due (ms)."""

    taken: list[DueTarget] = field(default_factory=list)
    more: list[int] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=dict)


class DeadlineQueue:
    def __init__(self, store: Pipeliner) -> None:
        self._store = store
        self._over: dict[int, list[str]] = {}
        """By shard, what is to be taken out of it at the end of this turn of the event loop."""

    def schedule(self, command: str, agent: str, at: int) -> asyncio.Future[Reply]:
        """Look at this target at `at` (ms), or sooner if that was asked for before."""
        return self._store.submit(
            "ZADD", schema.deadlines_key(schema.deadline_shard(command)), "LT", at, f"{command} {agent}"
        )

    def reschedule(self, command: str, agent: str, taken: int, at: int) -> asyncio.Future[Reply]:
        """The sweeper has looked, having taken it at `taken`: look again at `at` (ms), or sooner if meanwhile asked."""
        key = schema.deadlines_key(schema.deadline_shard(command))
        return self._store.run(lua.RESCHEDULE, (key,), (f"{command} {agent}", taken + TAKEN_MS, at))

    def remove(self, command: str, agent: str) -> None:
        """The target is over: never look again. All that is done in one turn of the loop leaves in one call a shard."""
        if not self._over:
            asyncio.get_running_loop().call_soon(self.flush)
        self._over.setdefault(schema.deadline_shard(command), []).append(f"{command} {agent}")

    def flush(self) -> list[asyncio.Future[Reply]]:
        """Send what `remove` has collected now; called by itself at the end of the turn."""
        over, self._over = self._over, {}
        return [
            self._store.submit("ZREM", schema.deadlines_key(shard), *members, priority=Priority.RESULTS)
            for shard, members in over.items()
        ]

    def take(self, shards: Sequence[int] = range(schema.DEADLINE_SHARDS)) -> Coroutine[None, None, DueTargets]:
        """What is due in `shards`, up to BATCH of each."""
        replies = [
            self._store.run(lua.TAKE_DUE, (schema.deadlines_key(shard),), (BATCH, TAKEN_MS), expected=TAKE_BYTES)
            for shard in shards
        ]
        return self._looked(shards, replies)

    async def _looked(self, shards: Sequence[int], replies: list[asyncio.Future[Reply]]) -> DueTargets:
        look = DueTargets()
        failure: Exception | None = None
        for shard, answer in zip(shards, await answers_or_errors(replies), strict=True):
            if isinstance(answer, Exception):
                failure = answer
                continue
            first, second, *members = items(answer)
            now, soonest = integer(first), integer(second)
            for member in members:
                command, _, agent = text(member).partition(" ")
                look.taken.append(DueTarget(command, agent, now))
            if soonest and soonest <= now:
                look.more.append(shard)
            elif soonest:
                look.next[shard] = soonest
        if failure is not None and not look.taken:
            raise failure  # one shard that cannot be read must not keep the others waiting
        return look
