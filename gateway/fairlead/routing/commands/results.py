"""Reads results from any offset, on any node, until the command is over.

Called by the API. A doorbell tells a reader that there is more, or what there is if that is little; without one it
reads again after a while, so a lost doorbell costs only time. While Redis is away, the reader waits and the caller's
stream pauses. Results that are retained as a window are removed when the reader asks for what follows them, and the
agent's node is told that there is room. So a slow caller slows the agent, and no memory grows.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import msgspec

from fairlead.bus.doorbell import ResultsConsumed
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, InvalidRequest, RecordLost, ResultsDropped, ResultsTrimmed
from fairlead.fleet.command_record import CommandRecord, OutOfRange, Result, ResultPage
from fairlead.fleet.commands import ENTRY_BYTES
from fairlead.routing.commands.result_doorbells import page_of
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import wait_for_redis

PAGE_BYTES = 256 << 10
POLL_INTERVAL = 5.0
"""Seconds without a doorbell after which a follower reads again."""
OUTAGE = 30.0
"""Seconds that a follower waits for Redis before its caller gets an error."""
PATIENCE = 0.24
"""Seconds more that an answer without any result may be held back: most commands have ended by then, and their answer
is one write. A longer one can tell nothing yet but its id."""
AGAIN = "retry"
"""The kind of the entry with which another run of the command begins."""
REQUEST_BYTES = 2 << 20
"""Bytes of a window that one request returns. With the `from` of the next request, the caller confirms what it has
received. What was only written may still be in megabytes of buffers on the way, so it must stay in Redis until then."""


class ResultsUpdate(msgspec.Struct, frozen=True):
    """New results, and with the last of them `ended`, the record of the command.

    Without either, there was nothing new for a while, which lets the caller keep its connection alive. `more` is the
    offset from which the caller must ask again, which confirms everything before it. A node that stops sets it too.
    """

    results: list[Result]
    ended: CommandRecord | None = None
    more: int | None = None


class _Place:
    """Where a reader is. Of a caller who has read results that Redis has lost since, it reads on from where they are
    missing: most are sent again and are dropped here, but a new run of the command makes void what was read."""

    __slots__ = ("at", "held", "next")

    def __init__(self, offset: int) -> None:
        self.at = self.next = offset
        """The offset from which it reads, and the one from which its caller has not read yet."""
        self.held = 0
        """Bytes of a window that were read."""

    def move(self, page: ResultPage) -> list[Result]:
        """Move behind a page. Returns what is new of it. Raises InvalidRequest if it turns out at the end that there
        never were so many results as the caller says to have read."""
        results = page.results
        if results:
            self.at = results[-1].offset + 1
            if page.held >= 0:
                self.held += sum([len(one.payload) + ENTRY_BYTES for one in results])
        elif page.seq < self.at:
            self.at = page.seq
        if self.at >= self.next and (not results or results[0].offset >= self.next):
            self.next = self.at
            return results
        for i, one in enumerate(results):
            if one.kind == AGAIN or one.offset >= self.next:
                self.next = self.at
                return results[i:]
        if page.ended is not None and self.at < self.next and not page.ended.may_lack_results:
            raise _out_of_range(self.next, self.at)
        return []


class ResultReader:
    def __init__(self, fleet: FleetStore, inbox: Inbox, followers: Followers, membership: Membership) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._records = fleet.records
        self._gate = fleet.gate
        self._inbox = inbox
        self._followers = followers
        self._membership = membership

    async def read(
        self, command: str, offset: int, follow: bool, follower: Follower | None = None, opens: float = 0.0,
        poll: float = POLL_INTERVAL,
    ) -> AsyncGenerator[ResultsUpdate]:  # fmt: skip
        """Yield results from `offset` on, as they come, until the command is over.

        `follower` is that of a command just posted on this node: nothing can be read until it is notified. `opens` is
        the monotonic time until which the reader may hold back results. Then it wants an update, or an empty one
        PATIENCE later if there was no result by then. `poll` is the seconds without news after which it wants one.
        Without `follow` it ends where they end now.
        Raises CommandUnknown, InvalidRequest, ResultsTrimmed, ResultsDropped, RecordLost, and BusUnavailable.
        """
        known = empty = follower is not None
        place, clock, opened = _Place(offset), time.monotonic, not opens
        with self._followers.follow(command, follower) as follower:
            while True:
                if not empty:
                    told = follower.take()
                    if self._followers.released and follow and known:
                        yield ResultsUpdate([], more=place.next)  # any other node has the rest
                        return
                    page = await self._page_or_outage(command, place.at, follow, known, min(offset, place.at), told)
                    if page is None:
                        continue
                    known, results = True, place.move(page)
                    cut = place.held >= REQUEST_BYTES and page.ended is None and follow
                    if results or page.ended is not None:
                        opened = opened or clock() >= opens
                        yield ResultsUpdate(results, page.ended, place.next if cut else None)
                    if page.ended is not None or cut:
                        return
                    if page.held >= 0 and follow:
                        await self._announce_room(command)
                    if place.at < page.seq and page.results:
                        continue
                    if not follow:
                        return
                empty = False
                if not opened:  # perhaps nothing new was read, and `opens` has passed meanwhile
                    left = opens + (PATIENCE if place.at == offset else 0) - clock()
                    if left > 0 and await follower.wait(left):
                        continue
                    opened = True
                    yield ResultsUpdate([])
                if not await follower.wait(poll):
                    yield ResultsUpdate([])

    async def _page_or_outage(
        self, command: str, at: int, follow: bool, known: bool, confirmed: int, told: Sequence[bytes]
    ) -> ResultPage | None:
        """As `_page`; None if Redis was away and answers again."""
        try:
            return await self._page(command, at, follow, known, confirmed, told=told)
        except BusUnavailable:
            if not follow or not await wait_for_redis(self._store, OUTAGE):
                raise
            return None

    async def check(self, command: str, offset: int, follow: bool) -> None:
        """Raise what `read` would raise at once, before any of the response is sent."""
        await self._page(command, offset, follow, known=False, confirmed=0, size=1)

    async def _page(
        self, command: str, offset: int, follow: bool, known: bool, confirmed: int, size: int = PAGE_BYTES,
        told: Sequence[bytes] = (),
    ) -> ResultPage:  # fmt: skip
        """One page of results: what doorbells have `told`, or else from the store. Results before `confirmed` are
        removed if the command keeps a window."""
        if known and told and (page_told := page_of(command, offset, told)) is not None:
            return page_told
        await self._gate.wait_settled(command)
        lease = self._membership.lease if follow else ""
        page = await self._records.read(command, offset, size, lease, confirmed if follow else 0)
        if page is None and known:
            raise RecordLost(
                f"the record of command {command} is gone, because it has expired or Redis has lost its data: "
                "what became of the command is not known"
            )
        if page is None:
            raise self._membership.unknown_command(command)
        if isinstance(page, OutOfRange) and page.dropped_at:
            raise results_dropped(command, page)
        if isinstance(page, OutOfRange) and page.trimmed:
            raise ResultsTrimmed(
                f"results before offset {page.edge} were read and removed: this command keeps only a window",
                first=page.edge,
            )
        if isinstance(page, OutOfRange) and (page.lost or (follow and page.ended is None)):
            # The caller may have read what Redis has lost since: the agent sends it again, or the command ends for it.
            return ResultPage(page.edge, [], page.ended, -1)
        if isinstance(page, OutOfRange):
            raise _out_of_range(offset, page.edge)
        return page

    async def _announce_room(self, command: str) -> None:
        """Tell the agent's node that it may grant more credit. If that is lost, the next read repeats it."""
        try:
            agent = await self._records.agent_of(command)
            row = await self._directory.look_up(agent) if agent is not None else None
        except BusUnavailable:
            return
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (ResultsConsumed(row.agent, command),))


def _out_of_range(offset: int, count: int) -> InvalidRequest:
    return InvalidRequest(
        f"from={offset} is out of range: expected at most {count}, the number of results", field="from"
    )


def results_dropped(command: str, page: OutOfRange) -> ResultsDropped:
    at = datetime.fromtimestamp(page.dropped_at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ResultsDropped(
        f"the results of command {command} were dropped at {at}, after it had ended, to make room for others: how it "
        f"ended is at offset {page.edge}",
        first=page.edge,
    )
