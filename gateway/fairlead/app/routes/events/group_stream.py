"""The stream of events for one reader of a group: each event that it takes, and each gap, as a line.

It differs from the stream of a single reader in what it sends: nothing tells a position, because the group has one for
all of its readers, and each event says which attempt this is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.types import Send

from fairlead.app.routes.events.event_stream import EventFilter, EventStream, StreamStart
from fairlead.app.routes.result_stream import Format
from fairlead.fleet.events.event_log import BEGINNING
from fairlead.routing.events.cloud_event import cloud_event
from fairlead.routing.events.event_feed import EventFeed, EventFeeds
from fairlead.routing.events.group_reader import GroupReader, GroupUpdate
from fairlead.routing.followers import Follower


class GroupStream(EventStream):
    """An ASGI response. `chosen` has the terms of the group and the rights of this reader."""

    _age = 0.0
    """What is sent to a caller that has gone is missing to the others for a while, so it is looked for each time."""

    def __init__(
        self, request: Request, form: Format, feeds: EventFeeds, chosen: EventFilter, reader: GroupReader, follow: bool
    ) -> None:
        super().__init__(request, form, feeds, chosen, StreamStart(BEGINNING, follow, resumes=True))
        self._reader = reader

    def _updates(self, feed: EventFeed, follower: Follower) -> AsyncGenerator[GroupUpdate]:
        return self._reader.read(follower, self._chosen.passed, follow=self._start.follow)

    async def _pass_on(self, update: GroupUpdate, send: Send) -> bool:
        """Give back what is not sent, so that another reader gets it at once."""
        there = False
        try:
            there = await super()._pass_on(update, send)
        finally:
            if not there:
                await self._reader.give_back(update.taken)
        return there

    async def _lines(self, update: GroupUpdate) -> bytes:  # type: ignore[override]
        lost = b"".join(map(self._lost, update.lost))
        return lost + b"".join(
            self._form.line({**cloud_event(event), "attempt": attempt}, event.position)
            for event, attempt in update.taken
        )

    def _quiet_line(self, update: GroupUpdate) -> bytes:  # type: ignore[override]
        return self._form.keep_alive
