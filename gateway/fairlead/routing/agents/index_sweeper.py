"""Walks the index of agents, once an hour for the whole fleet, and forgets who was absent too long.

Run as one loop by each node. Each minute of the fleet's clock has one shard of the index, and one node that is chosen
to walk it. A node that dies in its minute leaves that shard to whoever has it an hour later: what is forgotten then has
been away for `forget_after`, thirty days as a rule. Forgetting is a conditional step, so that two that walk the same
shard do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import random

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.directory import Directory, LastSeen
from fairlead.fleet.rendezvous import choose
from fairlead.routing.agents.removal import AgentRemoval
from fairlead.routing.membership.membership import Membership
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TURN_MS = 60_000
"""One shard of the index a minute: the whole fleet about once an hour."""
PAGE = 200
TOLD_LIMIT = 1_000
"""Rows that could not be read and are remembered as logged: more of them are only counted."""


class IndexSweeper:
    def __init__(self, directory: Directory, removal: AgentRemoval, membership: Membership, metrics: Metrics) -> None:
        self._directory = directory
        self._removal = removal
        self._membership = membership
        self._metrics = metrics
        self._told: set[str] = set()
        """Agents whose rows could not be read, and for which that was logged."""

    async def run(self) -> None:
        while True:
            now = self._membership.now()
            await asyncio.sleep((TURN_MS - now % TURN_MS) / 1000 + random.uniform(0, 1))
            if not self._membership.alive:
                continue  # this node does not know who is alive
            shard = self.shard()
            try:
                if shard is not None:
                    await self.sweep(shard)
            except BusUnavailable as e:
                logger.debug("the sweep waits for Redis: %s", e)
            except Exception:
                logger.exception("the sweep of shard %d failed", shard)

    def shard(self) -> int | None:
        """The shard that this node walks in this minute, if it is the one that is chosen."""
        turn = self._membership.now() // TURN_MS
        mine = self._membership.lease in choose(f"index {turn}", self._membership.living())
        return turn % schema.INDEX_SHARDS if mine else None

    async def sweep(self, shard: int) -> None:
        after = ""
        while page := await self._directory.index_page(shard, after, PAGE):
            async for agent, seen in self._directory.last_seen(page):
                try:
                    await self._look(agent, seen)
                except BusUnavailable:
                    raise
                except Exception as e:
                    self._pass_over(agent, e)
            after = page[-1]

    async def _look(self, agent: str, seen: LastSeen | Exception | None) -> None:
        if isinstance(seen, Exception):
            raise seen
        if seen is None:  # its claim was refused
            await self._directory.forget(agent, 0, "")
        else:
            await self._removal.look(agent, seen)

    def _pass_over(self, agent: str, error: Exception) -> None:
        """The row cannot be read, or what it says cannot be followed: the sweep goes on with the next one."""
        self._metrics.passed_over.inc()
        if agent in self._told or len(self._told) >= TOLD_LIMIT:
            return
        self._told.add(agent)
        logger.error(
            "the sweep passes over the row %s, which it cannot read; delete the key, or mend it: %s",
            schema.agent_key(agent), error, exc_info=error,
        )  # fmt: skip
