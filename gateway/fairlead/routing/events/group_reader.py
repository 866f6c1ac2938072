"""Reads the events of a tenant for one reader of a group, so that each event goes to one of its readers.

The API opens one for each caller that names a group. It looks first for events that another reader has not acknowledged
in time, and then moves the position of the group over what is new, on condition that no other reader has moved it
meanwhile. Redis knows what each reader has, so a reader, its node or its connection may be lost at any moment: what it
had becomes due again. It takes no more than its window. Nothing here knows who may read what: the caller of `read`
says which events are for the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from fairlead.errors import BusUnavailable, Unavailable
from fairlead.fleet.events.event_groups import SINK_MARK, DueEvents, EventGroups, GroupTerms, OpenedGroup
from fairlead.fleet.events.event_log import EventLog, Position, StoredEvent
from fairlead.routing.events.event_feed import OUTAGE, PAGE_BYTES, PAGE_EVENTS, lost_until
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.store import Store

LOOK: Final = 0.5
"""Seconds between two looks for events that are due again, and for room that another node has heard of."""

BATCH: Final = 100
"""Events that are due again, or new, which a reader takes in one step."""

Passed = Callable[[list[StoredEvent]], Awaitable[list[StoredEvent]]]


class TakenEvent(NamedTuple):
    event: StoredEvent
    attempt: int
    """1 for an event that no reader of the group has had before."""


class GroupUpdate(NamedTuple):
    """What a reader has taken, and the positions up to which, or at which, events were removed before the group had
    acknowledged them. Without either, nothing came for a while."""

    taken: list[TakenEvent]
    lost: list[Position]


class ReaderTerms(NamedTuple):
    """`window`: most events that the reader has and has not acknowledged. `due_ms`: after this time another reader gets
    them. `batch`: most events that one step takes."""

    window: int
    due_ms: int
    batch: int = BATCH


def _uncounted(count: int) -> None:
    pass


class GroupReaders:
    """All groups, for the readers on this node."""

    def __init__(
        self, store: Store, log: EventLog, groups: EventGroups, followers: Followers, count_again: Callable[[int], None]
    ) -> None:
        """`count_again` counts the events that readers get again; the attempts of sinks are counted by themselves."""
        self.groups = groups
        self._count_again = count_again
        self._store = store
        self._log = log
        self._followers = followers
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def open(self, tenant: str, name: str, owner: str, terms: GroupTerms, at: Position) -> OpenedGroup:
        """The group, which is made if there is none. Raises Unavailable if the tenant has too many."""
        found = await self.groups.open(tenant, name, owner, terms, at)
        if found is None:
            raise Unavailable(
                "this tenant has as many groups of readers as it may have: remove one (`fairlead events groups`), or "
                "use one that there is"
            )
        return found

    def reader(self, tenant: str, name: str, terms: ReaderTerms) -> GroupReader:
        lock = self._locks.setdefault((tenant, name), asyncio.Lock())
        count_again = _uncounted if name.startswith(SINK_MARK) else self._count_again
        return GroupReader(
            self._store, self._log, self.groups, (tenant, name), terms, self._followers, lock, count_again
        )


class GroupReader:
    """`lock` is shared by the readers of the group on this node, so that they do not take turns for nothing."""

    def __init__(
        self, store: Store, log: EventLog, groups: EventGroups, group: tuple[str, str], terms: ReaderTerms,
        followers: Followers, lock: asyncio.Lock, count_again: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._log = log
        self._groups = groups
        self._tenant, self._name = group
        self._terms = terms
        self._followers = followers
        self._lock = lock
        self._count_again = count_again
        self.id = secrets.token_hex(6)
        """Names the reader in Redis."""

    async def read(self, follower: Follower, passed: Passed, *, follow: bool) -> AsyncGenerator[GroupUpdate]:
        """Yield what this reader takes: without `follow` at most once, otherwise for ever, and an empty update when
        nothing came for a while. `passed` chooses the events that are for the group; it passes over the others. Raises
        BusUnavailable, and Unavailable when this node stops or the group was removed."""
        while True:
            follower.clear()
            if self._followers.released and follow:
                raise Unavailable("this node is stopping: continue at another node")
            try:
                async with self._lock:
                    update, more = await self.step(passed)
            except BusUnavailable:
                if not follow or not await wait_for_redis(self._store, OUTAGE):
                    raise
                continue
            if update.taken or update.lost:
                yield update
            if not follow and (update.taken or update.lost or not more):
                return
            if not more and not await follower.wait(LOOK * random.uniform(0.8, 1.0)):
                yield GroupUpdate([], [])

    async def give_back(self, taken: Sequence[TakenEvent]) -> None:
        """Have these events, which this reader has taken and not passed on, due for the others at once."""
        with contextlib.suppress(BusUnavailable):  # then they are due in time
            for one in taken:
                await self._groups.postpone(self._tenant, self._name, one.event.position, 0)

    async def step(self, passed: Passed) -> tuple[GroupUpdate, bool]:
        """Take some events. The second value says whether there may be more at once."""
        terms = self._terms
        found = await self._groups.take_due(
            self._tenant, self._name, self.id, terms.window, terms.due_ms, terms.batch, PAGE_BYTES
        )
        if found is None:
            raise Unavailable(
                f"the group {self._name} was removed, or Redis has lost it: the next request makes it anew"
            )
        if found.events or found.lost:
            return await self._again(found, passed), True
        if found.room <= 0:
            return GroupUpdate([], []), False
        page = await self._log.read(self._tenant, found.at, PAGE_EVENTS, PAGE_BYTES)
        if (lost := lost_until(found.at, page)) is not None:
            done = await self._take(found.at, lost, 0, [], lost=True)
            return GroupUpdate([], [lost] if done else []), True
        if not page.events:
            return GroupUpdate([], []), False
        room = min(found.room, terms.batch)
        wanted = (await passed(page.events))[:room]
        # With less room than events, the group goes on behind the last one that is taken.
        full = len(wanted) == room
        after = wanted[-1].position if full else page.events[-1].position
        count = sum(event.position <= after for event in page.events)
        if not await self._take(found.at, after, count, wanted):
            return GroupUpdate([], []), True
        return GroupUpdate([TakenEvent(event, 1) for event in wanted], []), full or not page.complete

    async def _again(self, found: DueEvents, passed: Passed) -> GroupUpdate:
        """What was due again. Events that are not for the group any more are acknowledged for it."""
        due = {event.position: TakenEvent(event, attempt) for attempt, event in found.events}
        wanted = [event.position for event in await passed([one.event for one in due.values()])]
        if others := due.keys() - set(wanted):
            await self._groups.acknowledge(self._tenant, self._name, "", sorted(others))
        self._count_again(len(wanted))
        return GroupUpdate([due[position] for position in wanted], found.lost)

    async def _take(
        self, before: Position, after: Position, count: int, wanted: list[StoredEvent], *, lost: bool = False
    ) -> bool:
        taken = [event.position for event in wanted]
        outcome = await self._groups.take(
            self._tenant, self._name, self.id, (before, after), count, self._terms.due_ms, taken, lost=lost
        )
        if outcome != "ok":
            await asyncio.sleep(random.uniform(0.0, 0.02))  # another node was faster, and may be again
        return outcome == "ok"
