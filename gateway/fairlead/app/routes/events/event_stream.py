"""A stream of events over HTTP: as NDJSON, or as server-sent events for browsers.

Each event is a CloudEvent (https://github.com/cloudevents/spec, version 1.0.2) in the JSON format, with `offset`, its
position, as an extension. A line with only an offset says how far the stream has come although none of the events was
for this caller, so that it can resume there. The rights of the caller are checked again while the stream is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fairlead.app.routes.result_stream import LAST_LINE, Format
from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.policy import Verb
from fairlead.authorization.rule_selector import covers_name
from fairlead.authorization.subject import Subject
from fairlead.errors import FairleadError, Unavailable
from fairlead.fleet.events.event_log import EVENTS_DROPPED, Position, StoredEvent
from fairlead.fleet.selector import Selector
from fairlead.routing.events.cloud_event import cloud_event
from fairlead.routing.events.event_feed import EventFeed, EventFeeds, EventsUpdate
from fairlead.routing.followers import Follower

logger = logging.getLogger(__name__)

POLL: Final = 1.5
"""Seconds without events after which the stream looks whether its caller is still there and may still read."""
AGE: Final = 1.0
"""Seconds for which a check of the caller's rights holds (see `stream_guard`)."""
QUIET: Final = 10.0
"""Seconds after which a line is sent although there is nothing to say, for the least patient proxy."""


class StreamStart(NamedTuple):
    """`resumes`: the caller has read everything before `after`."""

    after: Position
    follow: bool
    resumes: bool


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a caller wants and may read. `agent` and `type` are empty for all; `type` may end with `*`. A
    selector chooses among the agents that the caller may also view."""

    authorizer: Authorizer
    subject: Subject
    agent: str
    type: str
    selector: Selector

    async def passed(self, events: list[StoredEvent]) -> list[StoredEvent]:
        """Raises BusUnavailable."""
        return [event for event in events if self._fits(event) and await self._admits(event.agent)]

    def _fits(self, event: StoredEvent) -> bool:
        # A gap is told whatever the type that the caller wants.
        of_type = not self.type or event.type == EVENTS_DROPPED or covers_name(self.type, event.type)
        return of_type and self.agent in ("", event.agent)

    async def _admits(self, agent: str) -> bool:
        if not await self.authorizer.allows(self.subject, Verb.EVENTS, agent):
            return False
        if not self.selector.terms:
            return True
        if not await self.authorizer.allows(self.subject, Verb.VIEW, agent):
            return False  # what a selector finds tells labels and facts
        traits = await self.authorizer.traits(agent)
        return self.selector.matches(traits.labels, traits.facts) is True

    def check(self) -> None:
        """Raises FairleadError if the caller's credential is no longer valid, or allows no events any more."""
        self.authorizer.require_still(self.subject, (Verb.EVENTS,))


class EventStream:
    """An ASGI response. Raises NodeBusy before it sends anything if this node has too many readers."""

    _age = AGE

    def __init__(
        self, request: Request, form: Format, feeds: EventFeeds, chosen: EventFilter, start: StreamStart
    ) -> None:
        self._request = request
        self._form = form
        self._feeds = feeds
        self._chosen = chosen
        self._start = start
        self._clock = asyncio.get_running_loop().time
        self._sent_at = self._checked_at = self._clock()
        self._told = start.after
        """The position that the caller knows."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = self._start
        with self._feeds.reader(self._chosen.subject.tenant) as (feed, follower):
            await send(self._form.start)
            try:
                if start.follow and not start.resumes:
                    # Otherwise a caller that loses a quiet stream would not know where to resume.
                    await send({"type": "http.response.body", "body": self._offset(start.after), "more_body": True})
                updates = self._updates(feed, follower)
                async with aclosing(updates):
                    async for update in updates:
                        if not await self._pass_on(update, send):
                            return
                last = b""
            except FairleadError as e:
                last = self._form.line(_error(e))
            except asyncio.CancelledError:
                # The server stops, and has waited long enough for Redis or for a caller that does not read.
                stopping = Unavailable("this node is stopping: continue at another node, after the last offset")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE):
                        await send({"type": "http.response.body", "body": self._form.line(_error(stopping))})
                return
            except Exception:
                logger.exception("a stream of events failed")
                last = self._form.line(_error(FairleadError("internal error: see the gateway's log")))
            await send({"type": "http.response.body", "body": last})

    def _updates(self, feed: EventFeed, follower: Follower) -> AsyncGenerator[Any]:
        """What there is to send. Raises what ends the stream."""
        start = self._start
        return feed.read(follower, start.after, follow=start.follow, resumes=start.resumes, poll=POLL)

    async def _pass_on(self, update: Any, send: Send) -> bool:
        """Send what the caller wants and may read; return whether the caller is still there."""
        now = self._clock()
        if now - self._checked_at >= self._age:
            # Also when there is much to send: what is sent to a caller that has gone is dropped without an error.
            if await self._request.is_disconnected():
                return False
            self._chosen.check()
            self._checked_at = now
        body = await self._lines(update)
        if not body:
            if now - self._sent_at < QUIET:
                return True
            body = self._quiet_line(update)
        self._sent_at = now
        await send({"type": "http.response.body", "body": body, "more_body": True})
        return True

    async def _lines(self, update: EventsUpdate) -> bytes:
        """The lines of an update."""
        body = b""
        if update.lost_until is not None:
            body = self._lost(update.lost_until)
            self._told = update.lost_until
        for event in await self._chosen.passed(update.events):
            body += self._form.line(cloud_event(event), event.position)
            self._told = event.position
        return body

    def _lost(self, position: Position) -> bytes:
        return self._form.line({"lost": {"offset": str(position)}}, position)

    def _quiet_line(self, update: EventsUpdate) -> bytes:
        if update.position == self._told:
            return self._form.keep_alive
        self._told = update.position
        return self._offset(update.position)

    def _offset(self, position: Position) -> bytes:
        """A line with an offset and nothing else. As a server-sent event it has an id and no data, which changes only
        what the browser sends when it connects again."""
        if self._form.events:
            return b"id: %b\n\n" % str(position).encode()
        return self._form.line({"offset": str(position)})


def _error(error: FairleadError) -> dict[str, object]:
    return {"error": {"code": error.code, "message": error.message, "temporary": error.temporary}}
