"""The handlers of `/v1/event-sinks`: where events are delivered, and what could not be delivered.

The file of sinks says which there are; nothing here changes that, and no answer has a URL, which may hold a secret. A
dead letter is an event of an agent, so whoever sees it, sends it again or discards it needs the verb `events` for that
agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.events import event_schemas
from fairlead.app.api.problems import NotFound
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.app.routes.commands import whole_number
from fairlead.authorization.policy import Verb
from fairlead.fleet.events.dead_letters import DeadLetter
from fairlead.fleet.events.event_groups import GroupStatus
from fairlead.fleet.events.event_log import BEGINNING, Position
from fairlead.node import Node
from fairlead.routing.sinks.sinks_file import Sink
from fairlead.tenant import local_id

BODY_LIMIT = 16 << 10
PAGE = 100

_to_retry = msgspec.json.Decoder(event_schemas.DeadLettersToRetry)
_encode = msgspec.json.Encoder().encode


class EventSinkRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._authorizer = node.authorizer
        self._sinks = node.sinks
        self._letters = node.sinks.letters

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """The handler of each operation."""
        return {
            "listEventSinks": self.list,
            "listDeadLetters": self.dead_letters,
            "retryDeadLetters": self.retry,
            "deleteDeadLetter": self.discard,
        }

    async def dead_letters(self, request: Request) -> Response:
        sink = await self._sink(request)
        limit = whole_number(request, "limit", PAGE, PAGE, 1)
        after = Position.parse(request.query_params.get("cursor", str(BEGINNING)))
        found = await self._letters.read(sink.tenant, sink.name, after, limit)
        shown = [_show(letter) for letter in await self._readable(request, found)]
        await self._auditor.allow(request, len(shown))
        page = event_schemas.DeadLetterPage(shown, found[-1].id if len(found) == limit else None)
        return Response(_encode(page), media_type="application/json")

    async def retry(self, request: Request) -> Response:
        sink = await self._sink(request)
        body = decoded(_to_retry, await read_body(request, BODY_LIMIT))
        self._authorizer.require_still(caller(request), (Verb.EVENTS,))
        ids = [Position.parse(id) for id in body.ids]
        found = await self._readable(request, await self._letters.find(sink.tenant, sink.name, ids))
        self._auditor.note(request, detail=" ".join(letter.id for letter in found))
        await self._auditor.allow(request, len(found))
        outcomes = await self._sinks.send_again(sink, found)
        results = [
            event_schemas.RetriedDeadLetter(letter.id, not outcome.error, outcome.error or None)
            for letter, outcome in zip(found, outcomes, strict=True)
        ]
        return Response(_encode(event_schemas.RetriedDeadLetters(results)), media_type="application/json")

    async def discard(self, request: Request) -> Response:
        sink = await self._sink(request)
        id = Position.parse(request.path_params["letter"])
        found = await self._readable(request, await self._letters.find(sink.tenant, sink.name, [id]))
        await self._auditor.allow(request, len(found))
        if not await self._letters.remove(sink.tenant, sink.name, [letter.id for letter in found]):
            raise NotFound(f"sink {sink.name!r} has no dead letter {id}: it was delivered or removed")
        return Response(status_code=204)

    async def _sink(self, request: Request) -> Sink:
        """The sink that the path names. Raises NotFound."""
        name = request.path_params["sink"]
        for sink in self._sinks.of(caller(request).tenant):
            if sink.name == name:
                return sink
        await self._auditor.allow(request, 0)
        raise NotFound(f"there is no sink {name[:80]!r}: the file of sinks (the setting event_sinks) names all of them")

    async def _readable(self, request: Request, letters: list[DeadLetter]) -> list[DeadLetter]:
        subject = caller(request)
        return [one for one in letters if await self._authorizer.allows(subject, Verb.EVENTS, one.event.agent)]

    async def list(self, request: Request) -> Response:
        tenant = caller(request).tenant
        statuses = await self._sinks.statuses(tenant)
        found = [
            _describe(
                sink, self._sinks.owner(sink), statuses.get(sink.name), await self._letters.count(tenant, sink.name)
            )
            for sink in self._sinks.of(tenant)
        ]
        await self._auditor.allow(request, len(found))
        return Response(_encode(event_schemas.EventSinkList(found)), media_type="application/json")


def _describe(sink: Sink, lease: str, found: GroupStatus | None, dead: int) -> event_schemas.EventSink:
    node = lease.partition("#")[0]
    about = sink.name, sink.host, sink.type, sink.selector_text, node
    if found is None:
        return event_schemas.EventSink(*about, None, 0, 0, None, None, dead, None, None)
    return event_schemas.EventSink(
        *about, str(found.at), found.pending, found.lag, None if found.lost == BEGINNING else str(found.lost),
        iso(found.lost_at), dead, found.error or None, iso(found.error_at),
    )  # fmt: skip


def _show(letter: DeadLetter) -> event_schemas.ListedDeadLetter:
    event = letter.event
    return event_schemas.ListedDeadLetter(
        letter.id, local_id(event.agent), event.type, event.id, str(event.position), letter.attempts, letter.error,
        len(event.payload),
    )  # fmt: skip
