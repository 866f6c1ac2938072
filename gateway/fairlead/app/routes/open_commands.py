"""The handler of `GET /v1/commands`: lists the commands that have not ended, as far as the caller may see them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import schemas
from fairlead.app.routes.commands import describe, whole_number
from fairlead.authorization.policy import Verb
from fairlead.errors import InvalidRequest
from fairlead.fleet.command_record import CommandRecord, OwnedCommand
from fairlead.fleet.schema import TargetState
from fairlead.node import Node
from fairlead.shards import SHARDS
from fairlead.tenant import qualified
from fairlead.wire.ids import check_agent_id

PAGE = 100
"""Commands in a page, unless the caller asks for another number; 1,000 at most."""
OPEN = (TargetState.QUEUED, TargetState.SENT, TargetState.RUNNING)

_encode = msgspec.json.Encoder().encode


class OpenCommandRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._commands = node.routing.open_commands
        self._authorizer = node.authorizer

    async def list(self, request: Request) -> Response:
        query, subject = request.query_params, caller(request)
        method, state = query.get("method"), _state(query.get("state"))
        limit = whole_number(request, "limit", PAGE, 1_000, 1)

        async def shown(record: CommandRecord) -> bool:
            if method not in (None, record.method) or state not in (None, record.targets[0].state):
                return False
            owner = OwnedCommand(record.subject, record.method, record.agent)
            return await self._authorizer.allows_owned(subject, Verb.RESULTS, owner)

        following = None
        if "agent" in query:
            agent = check_agent_id(query["agent"])
            self._auditor.note(request, agent=agent)
            found = await self._commands.of_agent(qualified(subject.tenant, agent), shown)
        else:
            shard, cursor = _place(query.get("cursor", "0:0"))
            found, following = await self._commands.page(subject.tenant, shard, cursor, limit, shown)
        await self._auditor.allow(request, len(found))
        following_text = None if following is None else f"{following[0]}:{following[1]}"
        page = schemas.CommandPage([describe(record) for record in found], following_text)
        return Response(_encode(page), media_type="application/json")


def _place(cursor: str) -> tuple[int, int]:
    """The shard of a cursor, and the place in it. Raises InvalidRequest."""
    shard, colon, place = cursor.partition(":")
    digits = shard.isascii() and shard.isdigit() and place.isascii() and place.isdigit()
    if not colon or not digits or len(cursor) > 24 or int(shard) >= SHARDS or int(place) >= 1 << 64:
        raise InvalidRequest(f"invalid cursor {cursor[:40]!r}: expected that of a page", field="cursor")
    return int(shard), int(place)


def _state(text: str | None) -> TargetState | None:
    if text is None or text in OPEN:
        return None if text is None else TargetState(text)
    raise InvalidRequest(f"invalid state {text[:32]!r}: expected one of {', '.join(OPEN)}", field="state")
