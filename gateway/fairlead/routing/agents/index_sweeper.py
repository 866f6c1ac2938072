"""Goes through the index of all agents, once an hour for the whole fleet, and removes those absent for too long; and
has the columns built that are missing.

Each node runs its loop. Each minute of the fleet's clock has one shard of the index and one chosen node that sweeps it.
If that node dies in its minute, the shard waits for the node that is chosen an hour later: the agents in question have
been absent for `forget_after`, usually thirty days. A removal is a conditional step in Redis, so two nodes that sweep
the same shard do no harm, and neither do two that build the same columns.
"""

from __future__ import annotations

import asyncio
import logging
import random

from fairlead.errors import BusUnavailable, StoreFull
from fairlead.fleet import schema
from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.directory import Directory
from fairlead.fleet.directory_replies import LastSeen
from fairlead.fleet.node_table import choose
from fairlead.routing.agents.removal import AgentRemoval
from fairlead.routing.membership.membership import Membership
from fairlead.shards import SHARDS
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

ROUND_MS = 60_000
"""One shard of the index a minute, which is the whole fleet about once an hour."""
FIRST_BUILD = 5.0
"""Seconds after its start within which a node looks for columns that are missing: those of a new fleet, or of one that
had none before."""
PAGE = 200
LOGGED_LIMIT = 1_000
"""The number of unreadable rows that are logged, once each; any further ones are only counted."""


class IndexSweeper:
    def __init__(
        self,
        directory: Directory,
        columns: ColumnBuilder,
        removal: AgentRemoval,
        membership: Membership,
        metrics: Metrics,
    ) -> None:
        self._directory = directory
        self._columns = columns
        self._removal = removal
        self._membership = membership
        self._metrics = metrics
        self._logged: set[str] = set()
        """The agents whose unreadable rows were logged."""

    async def run(self) -> None:
        await asyncio.sleep(random.uniform(0, FIRST_BUILD))
        await self._build()
        while True:
            now = self._membership.now()
            await asyncio.sleep((ROUND_MS - now % ROUND_MS) / 1000 + random.uniform(0, 1))
            if not self._membership.alive:
                continue  # this node does not know which nodes are alive
            shard = self.shard()
            try:
                if shard is not None:
                    await self.sweep(shard)
            except BusUnavailable as e:
                logger.debug("the sweep of the index waits for Redis: %s", e)
            except Exception:
                logger.exception("the sweep of shard %d of the index failed", shard)
            await self._build()

    async def _build(self) -> None:
        """Have the columns built of those shards for which this node is chosen."""
        living = self._membership.living()
        for shard in range(SHARDS):
            if not self._membership.alive or self._membership.lease not in choose(f"columns {shard}", living):
                continue
            try:
                added = await self._columns.build(shard)
            except (BusUnavailable, StoreFull) as e:
                logger.debug("building the columns of shard %d waits for Redis: %s", shard, e)
                return
            except Exception:
                logger.exception("building the columns of shard %d failed", shard)
            else:
                if added:
                    logger.info("the columns of shard %d are built: %d agents", shard, added)

    def shard(self) -> int | None:
        """The shard of this minute, if this node is chosen to sweep it."""
        round_number = self._membership.now() // ROUND_MS
        is_responsible = self._membership.lease in choose(f"index {round_number}", self._membership.living())
        return round_number % SHARDS if is_responsible else None

    async def sweep(self, shard: int) -> None:
        after = ""
        while page := await self._directory.index_page(shard, after, PAGE):
            async for agent, seen in self._directory.last_seen(page):
                try:
                    await self._check(agent, seen)
                except BusUnavailable:
                    raise
                except Exception as e:
                    self._skip(agent, e)
            after = page[-1]

    async def _check(self, agent: str, seen: LastSeen | Exception | None) -> None:
        if isinstance(seen, Exception):
            raise seen
        if seen is None:  # it has no row, because its claim was refused
            await self._directory.forget(agent, 0, "")
        else:
            await self._removal.remove_if_expired(agent, seen)

    def _skip(self, agent: str, error: Exception) -> None:
        """Count and log a row that cannot be read or acted on. The sweep continues with the next one."""
        self._metrics.rows_skipped.inc()
        if agent in self._logged or len(self._logged) >= LOGGED_LIMIT:
            return
        self._logged.add(agent)
        logger.error(
            "the sweep skips the row %s, which it cannot read; delete the key, or repair it: %s",
            schema.agent_key(agent), error, exc_info=error,
        )  # fmt: skip
