"""The event feeds: give the events of each tenant to its readers on this node, each from its own position on.

The API opens a reader for each caller. While there are any, one loop reads what is new from Redis, so that a hundred
readers cost Redis as much as one; a reader that is behind reads for itself until it has caught up. Nothing is queued
for a reader: it asks for what follows its position, so a slow one costs no memory. A reader whose next events are gone
is told so. Nothing here knows who may read what.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import NamedTuple

from fairlead.errors import BusUnavailable, NodeBusy, Unavailable
from fairlead.fleet.events.event_log import BEGINNING, EventLog, EventPage, Position, StoredEvent
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.tenant_limits import has_place
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.errors import StoreError
from fairlead.store.store import Store

logger = logging.getLogger(__name__)

READERS = 100
"""Readers on one node. Each may have a page of PAGE_BYTES on its way."""
PERIOD = 0.2
"""Seconds between two looks into Redis while somebody reads: events are for people and dashboards, and a look at an
unchanged stream takes Redis some 10 µs."""
PAGE_EVENTS = 500
PAGE_BYTES = 256 << 10
RECENT_EVENTS = 5_000
RECENT_BYTES = 4 << 20
"""What is kept of the newest events for readers that keep up."""
OUTAGE = 30.0
"""Seconds that a reader waits for Redis before its caller gets an error."""


class EventsUpdate(NamedTuple):
    """`position` is that of the reader after these events. With `lost_until`, the events between the reader's position
    before and this one were removed before it read them. Without either, nothing new came for a while."""

    events: list[StoredEvent]
    position: Position
    lost_until: Position | None = None


class EventFeeds:
    """The feeds of those tenants that have readers here."""

    def __init__(self, store: Store, log: EventLog, followers: Followers) -> None:
        self._store = store
        self._log = log
        self._followers = followers
        self._feeds: dict[str, EventFeed] = {}
        self._wanted = asyncio.Event()

    def count(self) -> int:
        """The number of readers on this node."""
        return sum(feed.readers for feed in self._feeds.values())

    def feed(self, tenant: str) -> EventFeed:
        return self._feeds.get(tenant) or EventFeed(self._store, self._log, self._followers, tenant)

    async def run(self) -> None:
        """Read what is new while somebody reads. Never returns."""
        while True:
            await self._wanted.wait()
            await asyncio.gather(*(feed.read_new() for feed in self._feeds.values()))
            await asyncio.sleep(PERIOD)

    @contextmanager
    def reader(self, tenant: str) -> Iterator[tuple[EventFeed, Follower]]:
        """A place for one reader. Raises NodeBusy if this node has as many as it takes, or the tenant its share."""
        feed = self.feed(tenant)
        if not has_place(tenant, {name: one.readers for name, one in self._feeds.items()}, READERS):
            count = self.count()
            raise NodeBusy(f"this node serves {count} readers of events, the maximum: use another node, or close one")
        self._feeds[tenant] = feed
        feed.readers += 1
        self._wanted.set()
        try:
            with self._followers.follow(feed.topic) as follower:
                yield feed, follower
        finally:
            feed.readers -= 1
            if not feed.readers:
                del self._feeds[tenant]
                feed.forget()
            if not self._feeds:
                self._wanted.clear()


class EventFeed:
    def __init__(self, store: Store, log: EventLog, followers: Followers, tenant: str) -> None:
        self._store = store
        self._log = log
        self._followers = followers
        self._tenant = tenant
        self.topic = f"events {tenant}"
        self.readers = 0
        self._recent: deque[StoredEvent] = deque()
        self._recent_bytes = 0
        self._complete_after: Position | None = None
        """`_recent` has every event after this position; None while nobody reads."""
        self._at = BEGINNING
        """The position up to which the loop has read."""

    async def read_new(self) -> None:
        """Read what is new for the readers of this tenant."""
        try:
            await self._read_new()
        except (BusUnavailable, StoreError) as e:
            logger.debug("reading events: %s", e)

    async def _read_new(self) -> None:
        if self._complete_after is None:
            newest = (await self._log.read(self._tenant, BEGINNING, 1, 1)).newest
            self._at, self._complete_after = newest, newest
            self._followers.notify(
                self.topic
            )  # what came between a reader's look and this one is for the reader to read
            return
        while self._complete_after is not None:  # the last reader may leave while Redis is asked
            page = await self._log.read(self._tenant, self._at, PAGE_EVENTS, PAGE_BYTES)
            if lost_until(self._at, page) is not None:
                self.forget()  # each reader finds out for itself what it has lost
            elif not page.events:
                return
            elif self._complete_after is not None:
                self._add(page.events)
            self._followers.notify(self.topic)
            if page.complete:
                return

    def _add(self, events: list[StoredEvent]) -> None:
        recent = self._recent
        recent.extend(events)
        self._at = events[-1].position
        self._recent_bytes += sum(len(event.payload) for event in events)
        while len(recent) > RECENT_EVENTS or (self._recent_bytes > RECENT_BYTES and len(recent) > 1):
            oldest = recent.popleft()
            self._complete_after = oldest.position
            self._recent_bytes -= len(oldest.payload)

    def forget(self) -> None:
        self._recent.clear()
        self._recent_bytes, self._complete_after = 0, None

    def _after(self, position: Position) -> list[StoredEvent] | None:
        """The next recent events after `position`; None if events in between may be missing here."""
        if self._complete_after is None or position < self._complete_after:
            return None
        found = list(takewhile(lambda event: event.position > position, reversed(self._recent)))
        return found[: -PAGE_EVENTS - 1 : -1]

    async def beginning(self, after: Position | None) -> Position:
        """The position at which a reader begins that wants what came after a moment, or with None only what is to come:
        one before which it has lost nothing. Raises BusUnavailable."""
        page = await self._log.read(self._tenant, BEGINNING, 1, 1)
        if after is None or page.newest == BEGINNING:
            return page.newest
        return max(after, page.trimmed)

    async def read(
        self, follower: Follower, after: Position, *, follow: bool, resumes: bool, poll: float
    ) -> AsyncGenerator[EventsUpdate]:
        """Yield events after a position: without `follow` those that there are, otherwise for ever, and an empty update
        after `poll` seconds without any. `resumes`: the caller has read everything before `after`, so it is told of
        what it has lost since. Raises BusUnavailable, and Unavailable when this node stops."""
        at = after
        while True:
            follower.clear()
            if self._followers.released and follow:
                raise Unavailable("this node is stopping: continue at another node, after the last offset")
            recent = self._after(at) if follow else None
            if recent is None:
                try:
                    page = await self._log.read(self._tenant, at, PAGE_EVENTS, PAGE_BYTES)
                except BusUnavailable:
                    if not follow or not await wait_for_redis(self._store, OUTAGE):
                        raise
                    continue
                if resumes and (lost := lost_until(at, page)) is not None:
                    at = lost
                    yield EventsUpdate([], at, lost)
                    continue
                recent, complete = page.events, page.complete
            else:
                complete = not recent
            resumes = True
            if recent:
                at = recent[-1].position
                yield EventsUpdate(recent, at)
            if complete and not follow:
                return
            if complete and not await follower.wait(poll):
                yield EventsUpdate([], at)


def lost_until(at: Position, page: EventPage) -> Position | None:
    """The position up to which events after `at` are gone; None if none are. If Redis does not know the position `at`,
    it has lost the last events, or all of them, and then everything that it has now is new."""
    if at == BEGINNING or page.trimmed <= at <= page.newest:
        return None
    return page.newest if BEGINNING < page.trimmed < at else page.trimmed
