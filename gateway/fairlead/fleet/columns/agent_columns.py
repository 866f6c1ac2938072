"""Finds the agents that match a selector without reading the rows of those that do not.

Lists and the selection of a run call it. It reads the columns of each shard as they are at one moment, and leaves what
they cannot decide, and what has changed since, to the rows: every caller reads these and matches them itself. Where
most agents match, or columns are incomplete, it goes through the index as if there were no columns. Raises
BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple

from fairlead.fleet import lua, schema
from fairlead.fleet.columns.column import positions
from fairlead.fleet.columns.shard_columns import ShardColumns, needed
from fairlead.fleet.directory import NAMES_AT_ONCE, SHARDS_AT_ONCE, Directory
from fairlead.fleet.selector import Selector
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.answer import Answer, map_bounded
from fairlead.store.backlog import Priority
from fairlead.store.errors import StoreError
from fairlead.store.reply import Reply, items
from fairlead.store.store import Store
from fairlead.tenant import tenant_of

EXPECTED: Final = 16 << 10
"""Bytes of a column of a shard that are expected: those of a fleet of a million."""
SHARE: Final = 2
"""If at least one agent in so many matches, reading the rows in the order of the index costs no more than sorting the
names of all that match."""
CALLS: Final = 16
EVERYBODY: Final = Selector(())


class Count(NamedTuple):
    """A part of a count: how many agents match surely, and the names of some of which only the rows tell."""

    sure: int
    open: list[str]


class AgentColumns:
    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def pages(
        self, shard: int, after: str, count: int, tenant: str, wanted: Selector
    ) -> AsyncGenerator[tuple[list[str], int, str]]:
        """Those agents of a tenant that may match, with all that do, as `Directory.index_pages` lists all agents."""
        ahead, count = 1, min(count, NAMES_AT_ONCE)
        while shard < SHARDS:
            lists: list[list[str] | None] = [None] * (SHARDS - shard)
            if wanted.terms:
                lists = await self._candidates(range(shard, min(shard + ahead, SHARDS)), tenant, wanted)
            if lists[0] is None:
                stop = shard + next((at for at, names in enumerate(lists) if names is not None), len(lists))
                async with aclosing(self._directory.index_pages(shard, after, count, tenant)) as pages:
                    async for page in pages:
                        yield page
                        _, shard, after = page
                        if shard >= stop:
                            break
                ahead = min(2 * ahead, SHARDS_AT_ONCE)
                continue
            known = list(itertools.takewhile(lambda names: names is not None, lists))
            found = [name for at, names in enumerate(known) for name in names or () if at or name > after]
            shard, after = shard + len(known), ""
            for page in _pages(found, count, shard):
                yield page
            ahead = max(ahead // 2, 1) if 2 * len(found) >= count else min(2 * ahead, SHARDS_AT_ONCE)

    async def counts(
        self, tenant: str, wanted: Selector, among: Sequence[Selector] = (EVERYBODY,)
    ) -> AsyncGenerator[Count]:
        """How many agents of a tenant match, and match one of `among` too, part by part of the fleet."""
        names = needed([wanted, *among])
        for begin in range(0, SHARDS, SHARDS_AT_ONCE):
            shards = range(begin, min(begin + SHARDS_AT_ONCE, SHARDS))
            asked: list[tuple[int, list[int]]] = []
            for shard, answer in [(shard, self._read(shard, names)) for shard in shards]:
                columns = await _or_none(answer)
                if columns is None:
                    async for page in self._indexed(shard, tenant):
                        yield Count(0, page)
                    continue
                found = columns.matching(tenant, wanted).both(columns.matching_any(tenant, among))
                yield Count(found.sure.bit_count(), [])
                asked.append((shard, positions(found.open, columns.size)))
                if sum(len(some) for _, some in asked) > NAMES_AT_ONCE * CALLS:
                    for listed in await self._names(asked):
                        yield Count(0, [name for name in listed if tenant_of(name) == tenant])
                    asked = []
                await asyncio.sleep(0)  # one shard of a large fleet is enough for a turn of the event loop
            for listed in await self._names(asked):
                yield Count(0, [name for name in listed if tenant_of(name) == tenant])

    async def _candidates(self, shards: range, tenant: str, wanted: Selector) -> list[list[str] | None]:
        """For each shard the names of all that may match, in their order; None where the index is to be read."""
        names = needed([wanted])
        lists: list[list[str] | None] = [None] * len(shards)
        asked: list[tuple[int, list[int]]] = []
        for shard, answer in [(shard, self._read(shard, names)) for shard in shards]:
            columns = await _or_none(answer)
            if columns is None:
                continue
            found, all_of = columns.matching(tenant, wanted).possible, columns.of_tenant(tenant).possible
            if found.bit_count() <= max(NAMES_AT_ONCE, all_of.bit_count() // SHARE):
                asked.append((shard, positions(found, columns.size)))
            await asyncio.sleep(0)
        for (shard, _), some in zip(asked, await self._names(asked), strict=True):
            # An agent whose row was removed by hand may have two positions.
            lists[shard - shards.start] = sorted({name for name in some if tenant_of(name) == tenant})
        return lists

    def _read(self, shard: int, names: list[str]) -> Answer[ShardColumns | None]:
        reply = self._store.run(
            lua.READ_COLUMNS, schema.columns_keys(shard), names, priority=Priority.BACKGROUND,
            expected=EXPECTED * len(names),
        )  # fmt: skip
        return Answer(reply, partial(ShardColumns.parse, names))

    async def _names(self, asked: Sequence[tuple[int, list[int]]]) -> list[list[str]]:
        """The names of the agents at some positions, for each shard that is asked."""
        parts = [
            (index, shard, some[at : at + NAMES_AT_ONCE])
            for index, (shard, some) in enumerate(asked)
            for at in range(0, len(some), NAMES_AT_ONCE)
        ]
        found: list[list[str]] = [[] for _ in asked]
        async for (index, _, _), names in map_bounded(self._read_names, parts, CALLS):
            found[index] += names
        return found

    def _read_names(self, part: tuple[int, int, list[int]]) -> Answer[list[str]]:
        _, shard, some = part
        reply = self._store.submit(
            "HMGET", schema.columns_key(shard), *(f"@{position}" for position in some), priority=Priority.BACKGROUND,
            expected=32 * len(some),
        )  # fmt: skip
        return Answer(reply, _parse_names)

    async def _indexed(self, shard: int, tenant: str) -> AsyncGenerator[list[str]]:
        after = ""
        while page := await self._directory.index_page(shard, after, NAMES_AT_ONCE, tenant):
            yield page
            after = page[-1]


async def _or_none(answer: Answer[ShardColumns | None]) -> ShardColumns | None:
    """None, too, for columns of another type, which are removed because of this error and built again."""
    try:
        return await answer
    except StoreError:
        return None


def _pages(names: Sequence[str], count: int, stop: int) -> Iterator[tuple[list[str], int, str]]:
    """Names that end at the beginning of the shard `stop`, page by page: one at least, which may be empty."""
    for at in range(0, max(len(names), 1), count):
        page = list(names[at : at + count])
        yield (page, stop, "") if at + count >= len(names) else (page, agent_shard(page[-1]), page[-1])


def _parse_names(reply: Reply) -> list[str]:
    """Without those of positions that were freed meanwhile."""
    return [name.decode() for name in items(reply) if isinstance(name, bytes) and name[:1] != b">"]
