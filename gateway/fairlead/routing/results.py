"""Reads results back, from any offset, on any node, for as long as the command goes on.

Called by the API. A reader that is woken reads what has grown; one that is not reads again after a while, so a
lost doorbell costs time only. When Redis is away it waits: the caller's stream pauses and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fairlead.errors import BusUnavailable, CommandUnknown
from fairlead.fleet.commands import Command, Commands, Result
from fairlead.routing.followers import Followers
from fairlead.routing.standing import Standing
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

    async def read(self, command: str, offset: int, follow: bool) -> AsyncGenerator[News]:
        """Results from `offset` on, as they come, until the command is over.

        Without `follow` it stops where the results stop now. Raises CommandUnknown, and BusUnavailable when Redis
        stays away.
        """
        with self._followers.follow(command) as news:
            while True:
                news.clear()
                try:
                    page = await self._records.read(command, offset, PAGE_BYTES, self._standing.lease if follow else "")
                    if page is None:
                        raise _unknown(command)
                    offset = page.results[-1].offset + 1 if page.results else offset
                    if page.over and offset >= page.seq:
                        ended = await self._records.look_up(command)
                        if ended is None:
                            raise _unknown(command)
                        yield News(page.results, ended)
                        return
                except BusUnavailable:
                    if not follow or not await self._store.wait_available(OUTAGE):
                        raise
                    continue
                if page.results:
                    yield News(page.results)
                    if offset < page.seq:
                        continue
                if not follow:
                    return
                try:
                    async with asyncio.timeout(LOOK_AGAIN):
                        await news.wait()
                except TimeoutError:
                    yield News([])


def _unknown(command: str) -> CommandUnknown:
    return CommandUnknown(f"no command {command}: it was never posted, or its results have expired")
