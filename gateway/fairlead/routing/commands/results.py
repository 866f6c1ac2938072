"""Reads results back, from any offset, on any node, for as long as the command goes on.

Called by the API. A reader that is woken reads what has grown; one that is not reads again after a while, so a
lost doorbell costs time only. When Redis is away it waits: the caller's stream pauses and goes on. Results that are
retained as a window go when their reader asks for what is behind them, and the agent's node is told that there is room:
so a slow caller slows the agent, and nobody's memory grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fairlead.bus.doorbell import ResultsConsumed
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, InvalidRequest, RecordLost, ResultsTrimmed
from fairlead.fleet.command_record import CommandRecord, OutOfRange, Result, ResultPage
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.pipeliner import Pipeliner

PAGE_BYTES = 256 << 10
LOOK_AGAIN = 5.0
"""Seconds without a doorbell until a follower looks by itself."""
OUTAGE = 30.0
"""Seconds that a follower waits for Redis before its caller is told."""
TURN_BYTES = 2 << 20
"""Bytes of a window that one request gives. A caller says with `from` of the next what it has: what was only written
to it may still be in the megabytes of buffers between, and must stay until then."""


@dataclass(frozen=True, slots=True)
class ResultsUpdate:
    """More results; with the last of them the record of the command, which is then over.

    Neither stands for "nothing new for a while", so that the caller can keep its connection alive. `more`: the caller
    must ask again from that offset on, and says by it that it has what is before; a node that stops says so, too.
    """

    results: list[Result]
    ended: CommandRecord | None = None
    more: int | None = None


class ResultReader:
    def __init__(
        self,
        store: Pipeliner,
        directory: Directory,
        records: Commands,
        inbox: Inbox,
        followers: Followers,
        membership: Membership,
    ) -> None:
        self._store = store
        self._directory = directory
        self._records = records
        self._inbox = inbox
        self._followers = followers
        self._membership = membership

    async def read(
        self, command: str, offset: int, follow: bool, follower: Follower | None = None, opens: float = 0.0
    ) -> AsyncGenerator[ResultsUpdate]:
        """Results from `offset` on, as they come, until the command is over.

        `follower`: of a command that was just posted here with this node as its follower, so that there is nothing to
        read until it is told. `opens`: when, on the clock of the event loop, the reader wants to hear that nothing is
        new. Without `follow` it stops where the results stop now. Raises CommandUnknown when there is
        no such command, InvalidRequest and ResultsTrimmed when there are no such results, RecordLost when there is no
        record any more, and BusUnavailable when Redis stays away.
        """
        known = empty = follower is not None
        at, read = offset, 0
        clock = asyncio.get_running_loop().time
        with self._followers.follow(command, follower) as follower:
            while True:
                if not empty:
                    follower.clear()
                    if self._followers.leaving and follow and known:
                        yield ResultsUpdate([], more=at)  # what there is beyond, any other node gives
                        return
                    try:
                        page = await self._page(command, at, follow, known, behind=offset)
                    except BusUnavailable:
                        if not follow or not await wait_for_redis(self._store, OUTAGE):
                            raise
                        continue
                    known = True
                    if page.results:
                        at = page.results[-1].offset + 1
                        read += sum(len(result.payload) for result in page.results)
                    cut = page.held >= 0 and read >= TURN_BYTES and page.ended is None and follow
                    if page.results or page.ended is not None:
                        yield ResultsUpdate(page.results, page.ended, at if cut else None)
                    if page.ended is not None or cut:
                        return
                    if page.held >= 0 and follow:
                        await self._tell_room(command)
                    if at < page.seq and page.results:
                        continue
                    if not follow:
                        return
                empty = False
                if (ahead := opens - clock()) > 0:
                    if await follower.wait(ahead):
                        continue
                    yield ResultsUpdate([])
                if not await follower.wait(LOOK_AGAIN):
                    yield ResultsUpdate([])

    async def check(self, command: str, offset: int) -> None:
        """Raise what `read` would raise at once, before anything of the answer is on its way."""
        await self._page(command, offset, follow=False, known=False, behind=0, size=1)

    async def _page(
        self, command: str, offset: int, follow: bool, known: bool, behind: int, size: int = PAGE_BYTES
    ) -> ResultPage:
        lease = self._membership.lease if follow else ""
        page = await self._records.read(command, offset, size, lease, behind if follow else 0)
        if page is None and known:
            raise RecordLost(
                f"the record of command {command} is gone, it has expired or Redis has lost its data: "
                "what became of the command is not known"
            )
        if page is None:
            raise self._membership.unknown(command)
        if isinstance(page, OutOfRange) and page.trimmed:
            raise ResultsTrimmed(
                f"results before offset {page.edge} have been read and are gone: this command keeps a window only",
                first=page.edge,
            )
        if isinstance(page, OutOfRange):
            raise InvalidRequest(f"from={offset} is beyond the {page.edge} results that there are", field="from")
        return page

    async def _tell_room(self, command: str) -> None:
        """The agent's node may grant more. Lost, it is told again when this reader looks again."""
        try:
            agent = await self._records.agent_of(command)
            row = await self._directory.look_up(agent) if agent is not None else None
        except BusUnavailable:
            return
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (ResultsConsumed(row.agent, command),))
