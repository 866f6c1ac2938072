"""The handlers of `/v1/pending-agents`: an administrator approves or denies agents that want to enrol.

A decision names the key that was shown, so that nobody else who asks for the same id meanwhile is let in by it.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import access_schemas
from fairlead.app.api.problems import NotFound
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.authorization.policy import Verb
from fairlead.fleet.tokens.pending_enrolments import PendingEnrolment
from fairlead.node import Node
from fairlead.tenant import local_id

BODY_LIMIT = 1 << 10

_shown_key = msgspec.json.Decoder(access_schemas.ShownKey)
_encode = msgspec.json.Encoder().encode


class PendingAgentRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._pending = node.identity.pending
        self._authorizer = node.authorizer
        self._now = node.membership.now

    async def list(self, request: Request) -> Response:
        found = [_describe(one) for one in await self._pending.all(self._now(), caller(request).tenant)]
        await self._auditor.allow(request, len(found))
        return Response(_encode(access_schemas.PendingAgentList(found)), media_type="application/json")

    async def approve(self, request: Request) -> Response:
        return await self._decide(request, approved=True)

    async def deny(self, request: Request) -> Response:
        return await self._decide(request, approved=False)

    async def _decide(self, request: Request, *, approved: bool) -> Response:
        agent = request.path_params["agent"]
        shown = decoded(_shown_key, await read_body(request, BODY_LIMIT))
        self._authorizer.require_still(caller(request), (Verb.ENROLMENT,))
        self._auditor.note(request, detail=f"{shown.key} by token {shown.token}")
        await self._auditor.allow(request)
        if not await self._pending.decide(agent, shown.key, shown.token, approved=approved):
            raise NotFound(
                f"no agent {local_id(agent)!r} with this key and token waits for an approval: it has enrolled, has not "
                "asked for a day, or asks with another token by now"
            )
        return Response(status_code=204)


def _describe(one: PendingEnrolment) -> access_schemas.PendingAgent:
    first, last = iso(one.first) or "", iso(one.last) or ""
    return access_schemas.PendingAgent(
        local_id(one.agent), one.thumbprint, one.state, one.token, one.address, first, last
    )
