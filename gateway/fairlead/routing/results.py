"""Reads results back, from any offset, on any node, for as long as the command goes on.

Called by the API. A reader that is woken reads what has grown; one that is not reads again after a while, so a
lost doorbell costs time only. When Redis is away it waits: the caller's stream pauses and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fairlead.errors import BusUnavailable, RecordLost
from fairlead.fleet.commands import Command, Commands, Result
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.standing import Standing
from fairlead.routing.times import redis_back
from fairlead.store.pipeliner import Pipeliner

PAGE_BYTES = 256 << 10
LOOK_AGAIN = 5.0
"""Seconds without a doorbell until a follower looks by itself."""
OUTAGE = 30.0
"""Seconds that a follower waits for Redis before its caller is told."""


@dataclass(frozen=True, slots=True)
class News:
    """More results; with the last of them the record of the command, which is then over.

    Neither stands for "nothing new for a while", so that the caller can keep its connection alive.
    """

    results: list[Result]
    ended: Command | None = None


class Results:
    def __init__(self, store: Pipeliner, records: Commands, followers: Followers, standing: Standing) -> None:
        self._store = store
        self._records = records
        self._followers = followers
        self._standing = standing

    async def read(
        self, command: str, offset: int, follow: bool, follower: Follower | None = None
    ) -> AsyncGenerator[News]:
        """Results from `offset` on, as they come, until the command is over.

        `follower`: of a command that was just posted here with this node as its follower, so that there is nothing to
        read until it is told. Without `follow` it stops where the results stop now. Raises CommandUnknown when there is
        no such command, RecordLost when there is none any more, and BusUnavailable when Redis stays away.
        """
        known = expected = follower is not None
        with self._followers.follow(command, follower) as follower:
            while True:
                if expected:
                    expected = False
                    if not await follower.wait(LOOK_AGAIN):
                        yield News([])
                follower.clear()
                try:
                    page = await self._records.read(command, offset, PAGE_BYTES, self._standing.lease if follow else "")
                except BusUnavailable:
                    if not follow or not await redis_back(self._store, OUTAGE):
                        raise
                    continue
                if page is None and known:
                    raise RecordLost(
                        f"the record of command {command} is gone, it has expired or Redis has lost its data: "
                        "what became of the command is not known"
                    )
                if page is None:
                    raise self._standing.unknown(command)
                known = True
                if page.results or page.ended is not None:
                    yield News(page.results, page.ended)
                if page.ended is not None:
                    return
                offset = page.results[-1].offset + 1 if page.results else offset
                if offset < page.seq and page.results:
                    continue
                if not follow:
                    return
                if not await follower.wait(LOOK_AGAIN):
                    yield News([])
