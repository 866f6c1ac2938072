"""Drops results of ended commands that have been kept for long enough, and the oldest ones when they are too many.

Each node runs its loop. For each two seconds one of the nodes is chosen, so that the cost does not grow with their
number, and one that dies is replaced after that. A node that has stored much looks without being chosen. Dropping is a
conditional step in Redis, so two nodes that drop do no harm. A reader of what was dropped is told so by the record (see
`ResultReader`). Open commands lose nothing here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from fairlead.errors import BusUnavailable
from fairlead.fleet.node_table import choose
from fairlead.fleet.retention.kept_results import KeptShard
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.shards import SHARDS
from fairlead.store.answer import Answer, AnswerOrError, map_bounded
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUND_MS: Final = 2_000
"""One look at all shards in each round: a call for each, and another one for those that keep anything."""
MUCH: Final = 8
"""A node that has stored this part of the limit since its last look does not wait until it is chosen."""
SOON: Final = 0.25
"""Seconds between two looks while half of the limit or more is used: what ends meanwhile may exceed it."""
AT_ONCE: Final = 32
"""Calls that are unanswered at any time."""
ANY: Final = 1 << 53
"""More bytes than a shard can have."""


class ResultDropper:
    def __init__(self, fleet: FleetStore, membership: Membership, limit: int, metrics: Metrics) -> None:
        """`limit` is in bytes of results of the whole fleet; 0 for a share of what Redis may use."""
        self._kept = fleet.kept_results
        self._memory = fleet.memory
        self._membership = membership
        self._setting = limit
        self.dropped = 0
        """Commands so far."""
        metrics.add_counter(
            "fairlead_results_dropped_total",
            "Ended commands whose results were dropped before their retention was over",
            lambda: self.dropped,
        )

    async def run(self) -> None:
        looked, mine, busy, seen = -1, False, False, 0
        while True:
            await asyncio.sleep(SOON * random.uniform(0.75, 1.25))
            if not self._membership.alive:
                continue  # this node does not know which nodes are alive
            if (number := self._membership.now() // ROUND_MS) != looked:
                looked, mine, busy = number, self._chosen(number), True
            if not (mine and busy) and (self._kept.stored - seen) * MUCH < self.limit:
                continue
            seen = self._kept.stored
            try:
                busy = await self.drop()
            except BusUnavailable as e:
                logger.debug("dropping results waits for Redis: %s", e)
            except Exception:
                logger.exception("dropping results failed")

    def _chosen(self, number: int) -> bool:
        """Whether this node drops results in this round."""
        return self._membership.lease in choose(f"results {number}", self._membership.living())

    @property
    def limit(self) -> int:
        """Bytes of results of ended commands in the whole fleet."""
        return self._setting or self._memory.results_bytes or ANY

    async def drop(self) -> bool:
        """Drop everything that is due, and then the oldest results of the shards that have more than their share.
        Returns whether half of the limit or more is used. Raises BusUnavailable."""
        sizes = await self._ask(self._kept.size, range(SHARDS))
        kept = await self._look([shard for shard, size in sizes.items() if size], ANY)
        while due := [shard for shard, found in kept.items() if found.to_drop]:
            await self._drop(one for shard in due for one in kept[shard].to_drop)
            kept |= await self._look(due, ANY)
        limit = self.limit
        share = fair_share([found.kept for found in kept.values()], limit)
        beyond = [shard for shard, found in kept.items() if found.kept > share]
        while beyond:
            over = await self._look(beyond, share)
            await self._drop(one for found in over.values() for one in found.to_drop)
            beyond = [shard for shard, found in over.items() if found.to_drop]
        return sum(found.kept for found in kept.values()) >= limit / 2

    async def _look(self, shards: Iterable[int], limit: int) -> dict[int, KeptShard]:
        """What these shards keep, and what is to be dropped of it."""
        return await self._ask(lambda shard: self._kept.find(shard, limit), shards)

    async def _ask(self, ask: Callable[[int], Answer[T]], shards: Iterable[int]) -> dict[int, T]:
        """The answer for each of these shards. One whose primary does not answer is left out; its results have a
        TTL."""
        found: dict[int, T] = {}
        failure: Exception | None = None
        async for shard, answer in map_bounded(lambda shard: AnswerOrError(ask(shard)), shards, AT_ONCE):
            if isinstance(answer, Exception):
                failure = answer
            else:
                found[shard] = answer
        if failure is not None and not found:
            raise failure
        return found

    async def _drop(self, noted: Iterable[str]) -> None:
        async for _, dropped in map_bounded(self._kept.drop, noted, AT_ONCE):
            self.dropped += dropped


def fair_share(sizes: Sequence[int], limit: int) -> int:
    """The most that each may keep, so that all of them together keep no more than `limit`: those that have little keep
    it, and what is left is shared equally by the others."""
    left = limit
    for at, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - at)
        if size > share:
            return share
        left -= size
    return limit
