"""The deadline queue: when the command sweeper must check each command again. It is one sorted set per shard, and any
node may take entries from it.

What accepts and ends commands writes it in the same step; the command sweeper takes from it. An entry is only the time
of a check: the action follows from the command's record, so checking twice, or late, changes nothing. Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field

from fairlead.fleet import lua, schema
from fairlead.shards import SHARDS, command_shard
from fairlead.store.answer import answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, text
from fairlead.store.store import Store

TAKEN_MS = 10_000
"""How long taken entries are reserved. It is long enough to process a batch; if the sweeper's node dies, another node
takes the entries after this time."""
BATCH = 64
"""The number of targets that are taken from one shard at once."""
TAKE_BYTES = 64 + BATCH * 80
"""The maximum size of the reply with a batch, for ids of the usual length."""


@dataclass(frozen=True, slots=True)
class DueTarget:
    """A target that is due, taken at `at` (Redis TIME in ms)."""

    command: str
    agent: str
    at: int


@dataclass(slots=True)
class DueTargets:
    """The targets that were taken from some shards. `more` lists the shards in which more targets are due. `next`
    holds, for each other shard that is not empty, when its first entry is due (ms)."""

    taken: list[DueTarget] = field(default_factory=list)
    more: list[int] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=dict)


class DeadlineQueue:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._over: dict[int, list[str]] = {}
        """The members to remove from each shard at the end of this turn of the event loop."""

    def schedule(self, command: str, agent: str, at: int) -> asyncio.Future[Reply]:
        """Check this target at `at` (ms), or sooner if an earlier check is already scheduled."""
        return self._store.write("ZADD", schema.deadlines_key(command_shard(command)), "LT", at, f"{command} {agent}")

    def reschedule(self, command: str, agent: str, taken: int, at: int) -> asyncio.Future[Reply]:
        """Check a target again at `at` (ms) after the sweeper, which took it at `taken`, has checked it. A check that
        was scheduled meanwhile for an earlier time is kept."""
        key = schema.deadlines_key(command_shard(command))
        return self._store.run(lua.RESCHEDULE, (key,), (f"{command} {agent}", taken + TAKEN_MS, at))

    def remove(self, command: str, agent: str) -> None:
        """Remove a target that has ended. All removals of one turn of the event loop are sent as one call per shard. A
        target whose removal fails is due again, and then removed by the sweeper."""
        if not self._over:
            asyncio.get_running_loop().call_soon(self.flush)
        self._over.setdefault(command_shard(command), []).append(f"{command} {agent}")

    def flush(self) -> list[asyncio.Future[Reply]]:
        """Send the removals that `remove` has collected. The event loop calls it at the end of the turn."""
        over, self._over = self._over, {}
        replies = []
        for shard, members in over.items():
            reply = self._store.submit("ZREM", schema.deadlines_key(shard), *members, priority=Priority.RESULTS)
            replies.append(reply)
        return replies

    async def scan(self, shard: int, cursor: int, count: int) -> tuple[int, list[tuple[str, str]]]:
        """Some of the open commands of a shard, as (command, agent), and the cursor of the next ones; 0 after the last.
        One that is open from the first call to the last is among them, perhaps twice (ZSCAN)."""
        key = schema.deadlines_key(shard)
        after, found = items(await self._store.submit("ZSCAN", key, cursor, "COUNT", count, expected=count * 100))
        members = [text(member).partition(" ") for member in items(found)[::2]]
        return int(text(after)), [(command, agent) for command, _, agent in members]

    async def first(self, shards: Sequence[int]) -> dict[int, int | None]:
        """When the first target of each of `shards` is due (ms), None for one without targets. Those whose primaries do
        not answer are left out."""
        replies = [self._store.submit("ZRANGE", schema.deadlines_key(shard), 0, 0, "WITHSCORES") for shard in shards]
        found: dict[int, int | None] = {}
        for shard, answer in zip(shards, await answers_or_errors(replies), strict=True):
            if not isinstance(answer, Exception):
                _, at = items(answer) or (None, None)
                found[shard] = None if at is None else int(float(text(at)))
        return found

    def take(self, shards: Sequence[int] = range(SHARDS)) -> Coroutine[None, None, DueTargets]:
        """Take the targets that are due in `shards`, up to BATCH of each shard."""
        replies = [
            self._store.run(lua.TAKE_DUE, (schema.deadlines_key(shard),), (BATCH, TAKEN_MS), expected=TAKE_BYTES)
            for shard in shards
        ]
        return self._collect(shards, replies)

    async def _collect(self, shards: Sequence[int], replies: list[asyncio.Future[Reply]]) -> DueTargets:
        due_targets = DueTargets()
        failure: Exception | None = None
        for shard, answer in zip(shards, await answers_or_errors(replies), strict=True):
            if isinstance(answer, Exception):
                failure = answer
                continue
            first, second, *members = items(answer)
            now, soonest = integer(first), integer(second)
            for member in members:
                command, _, agent = text(member).partition(" ")
                due_targets.taken.append(DueTarget(command, agent, now))
            if soonest and soonest <= now:
                due_targets.more.append(shard)
            elif soonest:
                due_targets.next[shard] = soonest
        if failure is not None and not due_targets.taken:
            raise failure  # if other shards were read, their targets must not wait for the one that failed
        return due_targets
