"""The handlers of `/v1/events` and of groups of readers: give the events of agents to callers that may read them.

They read the parameters and make the filter; `event_stream` and `group_stream` write the answer, and `routing.events`
has the events. A group belongs to the caller that made it, because what its readers pass over is gone for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.events import event_schemas
from fairlead.app.api.headers import find_header
from fairlead.app.api.problems import NotFound
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.app.routes.commands import flag, whole_number
from fairlead.app.routes.events.event_stream import EventFilter, EventStream, StreamStart
from fairlead.app.routes.events.group_stream import GroupStream
from fairlead.app.routes.result_stream import LINES, wanted
from fairlead.authorization.policy import Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, PermissionDenied
from fairlead.fleet import selector
from fairlead.fleet.events.event_groups import PENDING_LIMIT, SINK_MARK, GroupStatus, GroupTerms, check_group_name
from fairlead.fleet.events.event_log import BEGINNING, Position
from fairlead.node import Node
from fairlead.routing.events.group_reader import ReaderTerms
from fairlead.tenant import local_id, qualified
from fairlead.wire.ids import check_agent_id

BODY_LIMIT = 64 << 10
TYPE_LIMIT = 128
LONGEST = 1 << 31
"""Seconds that `since` may go back."""


_acknowledged = msgspec.json.Decoder(event_schemas.EventsToAcknowledge)
_encode = msgspec.json.Encoder().encode


class EventRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._authorizer = node.authorizer
        self._feeds = node.routing.events.feeds
        self._readers = node.routing.events.readers
        self._followers = node.routing.followers
        self._now = node.membership.now

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[ASGIApp]]]:
        """The handler of each operation."""
        return {
            "listEvents": self.list,
            "listEventGroups": self.groups,
            "acknowledgeEvents": self.acknowledge,
            "deleteEventGroup": self.remove,
        }

    async def list(self, request: Request) -> ASGIApp:
        query = request.query_params
        subject, follow = caller(request), flag(request, "follow")
        terms = GroupTerms(
            qualified(subject.tenant, check_agent_id(query["agent"])) if "agent" in query else "",
            _type(query.get("type", "")), query.get("selector", ""),
        )  # fmt: skip
        chosen = self._filter(subject, terms)
        start = await self._start(request, follow)
        self._auditor.note(request, agent=query.get("agent", ""), selector=terms.selector, detail=terms.type)
        if "group" in query:
            return await self._list_for_group(request, terms, start)
        for name in ("window", "ack_within"):
            if name in query:
                raise InvalidRequest(f"{name} is given without group: expected both (or neither)", field=name)
        await self._auditor.allow(request)
        return EventStream(request, wanted(request) or LINES, self._feeds, chosen, start)

    async def _list_for_group(self, request: Request, terms: GroupTerms, start: StreamStart) -> ASGIApp:
        subject, name = caller(request), check_group_name(request.query_params["group"])
        window = whole_number(request, "window", 100, PENDING_LIMIT, 1)
        ack_within = whole_number(request, "ack_within", 60, 3_600, 1)
        self._auditor.note(request, detail=f"group {name} {terms.type}".rstrip())
        await self._auditor.allow(request)
        found = await self._readers.open(subject.tenant, name, _owner(subject), terms, start.after)
        self._check_owner(subject, name, found.owner)
        if terms not in (GroupTerms(), found.terms):
            raise InvalidRequest(
                f"group {name} reads other events than this request asks for: expected the agent, type and selector "
                "with which it was made, or none (or another group)",
                field="group",
            )
        reader = self._readers.reader(subject.tenant, name, ReaderTerms(window, ack_within * 1000))
        chosen = self._filter(subject, found.terms)
        return GroupStream(request, wanted(request) or LINES, self._feeds, chosen, reader, start.follow)

    def _filter(self, subject: Subject, terms: GroupTerms) -> EventFilter:
        return EventFilter(self._authorizer, subject, terms.agent, terms.type, selector.parse(terms.selector))

    def _check_owner(self, subject: Subject, name: str, owner: str) -> None:
        if not subject.administrator and owner != _owner(subject):
            raise PermissionDenied(
                f"{subject.identity} may not use group {name}, which another caller has made: expected a group of its "
                "own (choose another name)",
                subject=subject.identity,
            )

    async def acknowledge(self, request: Request) -> Response:
        subject, name = caller(request), check_group_name(request.path_params["group"])
        body = decoded(_acknowledged, await read_body(request, BODY_LIMIT))
        self._authorizer.require_still(subject, (Verb.EVENTS,))
        positions = [Position.parse(offset) for offset in body.offsets]
        await self._auditor.allow(request, len(positions))
        owner = "" if subject.administrator else _owner(subject)
        done = await self._readers.groups.acknowledge(subject.tenant, name, owner, positions)
        if not isinstance(done, int):
            raise _unknown(name)
        self._followers.notify(self._feeds.feed(subject.tenant).topic)  # a reader may have waited for room
        return Response(_encode(event_schemas.AcknowledgedEvents(done)), media_type="application/json")

    async def groups(self, request: Request) -> Response:
        subject = caller(request)
        found = [
            _describe(one)
            for one in await self._readers.groups.list(subject.tenant)
            if (subject.administrator or one.owner == _owner(subject)) and not one.name.startswith(SINK_MARK)
        ]
        await self._auditor.allow(request, len(found))
        return Response(_encode(event_schemas.EventGroupList(found)), media_type="application/json")

    async def remove(self, request: Request) -> Response:
        subject, name = caller(request), check_group_name(request.path_params["group"])
        await self._auditor.allow(request)
        found = await self._readers.groups.find(subject.tenant, name)
        if found is None or not (subject.administrator or found.owner == _owner(subject)):
            raise _unknown(name)
        await self._readers.groups.remove(subject.tenant, name)
        return Response(status_code=204)

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
        return StreamStart(await self._feeds.feed(caller(request).tenant).beginning(moment), follow, resumes=False)


def _owner(subject: Subject) -> str:
    """Who has a group. Tokens of one name that are limited to different roles do not share one."""
    return subject.identity + ("" if subject.roles is None else f" limited to {','.join(sorted(subject.roles))}")


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"there is no group {name!r} of yours: it was removed, nobody has used it for 7 days, or it never was"
    )


def _describe(one: GroupStatus) -> event_schemas.EventGroup:
    return event_schemas.EventGroup(
        one.name, one.owner, local_id(one.terms.agent), one.terms.type, one.terms.selector, str(one.at), one.pending,
        one.lag, None if one.lost == BEGINNING else str(one.lost), iso(one.lost_at), iso(one.began) or "",
        iso(one.used) or "",
    )  # fmt: skip


def _type(given: str) -> str:
    if len(given) > TYPE_LIMIT:
        raise InvalidRequest(f"type of {len(given)} characters: expected at most {TYPE_LIMIT}", field="type")
    return given
