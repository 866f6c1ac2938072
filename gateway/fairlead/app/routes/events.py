"""The handler of `/v1/events`: gives the events of agents to a caller, as far as the caller may read them.

It reads the parameters and makes the filter; `event_stream` writes the answer, and `routing.event_feed` has the events.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.headers import find_header
from fairlead.app.routes.commands import flag, whole_number
from fairlead.app.routes.event_stream import EventFilter, EventStream, StreamStart
from fairlead.app.routes.result_stream import LINES, wanted
from fairlead.errors import InvalidRequest
from fairlead.fleet import selector
from fairlead.fleet.events.event_log import BEGINNING, Position
from fairlead.node import Node
from fairlead.wire.ids import check_agent_id

TYPE_LIMIT = 128
LONGEST = 1 << 31
"""Seconds that `since` may go back."""


class EventRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._authorizer = node.authorizer
        self._feed = node.routing.event_feed
        self._now = node.membership.now

    async def list(self, request: Request) -> ASGIApp:
        query = request.query_params
        chosen = EventFilter(
            self._authorizer,
            caller(request),
            agent=check_agent_id(query["agent"]) if "agent" in query else "",
            type=_type(query.get("type", "")),
            selector=selector.parse(query.get("selector", "")),
        )
        follow = flag(request, "follow")
        start = await self._start(request, follow)
        self._auditor.note(request, agent=chosen.agent, selector=query.get("selector", ""), detail=chosen.type)
        await self._auditor.allow(request)
        return EventStream(request, wanted(request) or LINES, self._feed, chosen, start)

    async def _start(self, request: Request, follow: bool) -> StreamStart:
        """Where the stream begins. Raises InvalidRequest, and BusUnavailable."""
        after, since = request.query_params.get("after"), request.query_params.get("since")
        if after is not None and since is not None:
            raise InvalidRequest("after and since are both given: expected one of them", field="since")
        last = find_header(request, b"last-event-id")
        if last:  # a browser that connects again sends the same query with it
            return StreamStart(Position.parse(last), follow, resumes=True)
        if after is not None:
            return StreamStart(Position.parse(after), follow, resumes=True)
        if since is None:
            return StreamStart(BEGINNING, follow, resumes=False)
        seconds = whole_number(request, "since", 0, LONGEST)
        # Without seconds, the clock that gave the newest position may be ahead of this node's.
        moment = Position(max(self._now() - seconds * 1000, 0), 0) if seconds else None
        return StreamStart(await self._feed.beginning(moment), follow, resumes=False)


def _type(given: str) -> str:
    if len(given) > TYPE_LIMIT:
        raise InvalidRequest(f"type of {len(given)} characters: expected at most {TYPE_LIMIT}", field="type")
    return given
