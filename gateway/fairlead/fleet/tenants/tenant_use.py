"""What each tenant uses, in Redis, as far as its quotas need it: its enrolled agents, open commands and runs.

`routing` asks before it accepts something, and says when it has ended. An end that was not said is forgotten at the
deadline, so nothing is counted for ever. All keys of a tenant share its hash tag. Raises BusUnavailable if Redis does
not answer.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fairlead.fleet import lua, schema
from fairlead.shards import SHARDS
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, text
from fairlead.store.store import Store
from fairlead.tenant import bounds, shown_tenant


class TenantUse:
    def __init__(self, store: Store) -> None:
        self._store = store

    def admit_command(self, tenant: str, command: str, until: int, most: int, rate: int) -> Answer[tuple[str, int]]:
        """Count a command that ends at the time `until` (ms) at the latest. The answer is (ok, 0), (open, how many are
        open) or (rate, ms until the next); `most` and `rate` are 0 for no limit."""
        keys = _open(tenant), _use(tenant)
        return Answer(self._store.run(lua.ADMIT_COMMAND, keys, (command, until, most, rate)), _parse)

    def end_command(self, tenant: str, command: str) -> asyncio.Future[Reply]:
        return self._store.submit("ZREM", _open(tenant), command, priority=Priority.RESULTS)

    def admit_run(self, tenant: str, run: str, concurrency: int, until: int, most: int) -> Answer[tuple[str, int]]:
        """Count a run. The answer is (ok, 0) or (full, the concurrency of the other runs)."""
        args = run, concurrency, until, most
        return Answer(self._store.run(lua.ADMIT_RUN, (_use(tenant),), args), _parse)

    def end_run(self, tenant: str, run: str) -> asyncio.Future[Reply]:
        return self._store.submit("HDEL", _use(tenant), f"run:{run}")

    def admit_agent(self, tenant: str, agent: str, now: int, most: int) -> Answer[tuple[str, int]]:
        """Count an agent that enrols. The answer is (ok, 0) or (full, how many there are)."""
        return Answer(self._store.run(lua.ADMIT_AGENT, (_agents(tenant),), (agent, now, most)), _parse)

    def remove_agent(self, tenant: str, agent: str) -> asyncio.Future[Reply]:
        return self._store.submit("ZREM", _agents(tenant), agent)

    async def known_agents(self, tenant: str) -> int:
        """How many agents of a tenant have a row."""
        low, high = bounds(tenant)
        counts = [
            self._store.submit("ZLEXCOUNT", schema.index_key(shard), low, high, priority=Priority.BACKGROUND)
            for shard in range(SHARDS)
        ]
        return sum([integer(await count) for count in counts])

    def open_commands(self, tenant: str, now: int) -> Answer[int]:
        """How many of the commands that were counted have not ended."""
        key = _open(tenant)
        return Answer(self._store.submit("ZCOUNT", key, f"({now}", "+inf", priority=Priority.BACKGROUND), integer)

    def run_concurrency(self, tenant: str, now: int) -> Answer[int]:
        """The concurrency of all runs that were counted and have not ended."""
        reply = self._store.submit("HVALS", _use(tenant), priority=Priority.BACKGROUND)
        return Answer(reply, partial(_concurrency, now))


def _open(tenant: str) -> str:
    return f"fl1:tenant_open:{{{shown_tenant(tenant)}}}"


def _use(tenant: str) -> str:
    return f"fl1:tenant_use:{{{shown_tenant(tenant)}}}"


def _agents(tenant: str) -> str:
    return f"fl1:tenant_agents:{{{shown_tenant(tenant)}}}"


def _parse(reply: Reply) -> tuple[str, int]:
    why, *count = items(reply)
    return text(why), integer(count[0]) if count else 0


def _concurrency(now: int, reply: Reply) -> int:
    runs = (text(value).split(" till ") for value in items(reply))
    return sum(int(run[0]) for run in runs if len(run) == 2 and int(run[1]) > now)
