"""Builds the columns of a shard from its rows: when there are none yet, when they were lost, or when they have refused
keys for a day, so that other keys may be the common ones by now.

The index sweeper calls it on one node for each shard. Meanwhile lists read the rows of that shard. Whoever writes a row
writes its columns in the same step, so the builder adds only the rows that nobody has written since it began. Raises
BusUnavailable if Redis does not answer, and StoreFull if it is full.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from fairlead.errors import FairleadError
from fairlead.fleet import lua, schema
from fairlead.fleet.directory import IN_ONE_CALL, Directory
from fairlead.store.backlog import Priority
from fairlead.store.errors import StoreError
from fairlead.store.reply import integer, text
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

PAUSE: Final = 0.004
"""Seconds between two calls, each for IN_ONE_CALL rows: 4,000 rows a second, a tenth of the time of one Redis."""
FULL_MS: Final = 24 * 3600_000
"""How long columns that have refused keys are kept."""


class ColumnBuilder:
    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    async def build(self, shard: int) -> int:
        """Build the columns of a shard unless they are ready. Returns the number of rows that were added."""
        keys = schema.columns_keys(shard)
        begun = text(await self._store.run(lua.CREATE_COLUMNS, keys, (FULL_MS,), priority=Priority.BACKGROUND))
        if not begun:
            return 0
        added, after = 0, ""
        while page := await self._directory.index_page(shard, after, IN_ONE_CALL):
            added += await self._add(shard, page)
            after = page[-1]
            await asyncio.sleep(PAUSE)
        await self._store.run(lua.END_COLUMNS, keys[:1], (begun,), priority=Priority.BACKGROUND)
        return added

    async def _add(self, shard: int, agents: list[str]) -> int:
        calls = [((schema.agent_key(agent), *schema.columns_keys(shard)), ()) for agent in agents]
        added = 0
        for agent, reply in zip(
            agents, await self._store.run_each(lua.INDEX_AGENT, calls, priority=Priority.BACKGROUND), strict=True
        ):
            if isinstance(reply, StoreError):  # no list can read this row either
                logger.debug("the row of %s is in no column: %s", agent, reply)
            elif isinstance(reply, FairleadError):
                raise reply
            else:
                added += integer(reply)
        return added
