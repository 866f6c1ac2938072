"""The handler of `/v1/contents`: stores octets once, for all commands that name them.

It checks the caller's rights and calls `routing.contents`. Whoever may run something may store a content; only an
approver reads one back through the API, as a part of what is to be approved.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import schemas
from fairlead.app.api.request_body import read_body
from fairlead.authorization.policy import Verb
from fairlead.node import Node
from fairlead.routing.contents.content_keeper import CONTENT_BYTES

_encode = msgspec.json.Encoder().encode


class ContentRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._contents = node.routing.contents
        self._authorizer = node.authorizer

    async def put(self, request: Request) -> Response:
        """Store the body under its digest, which the path names."""
        data = await read_body(request, CONTENT_BYTES)
        subject, digest = caller(request), request.path_params["digest"]
        self._authorizer.require_still(subject, (Verb.RUN,))
        await self._auditor.allow(request)
        await self._contents.put(subject.tenant, digest, data)
        return Response(_encode(schemas.StoredContent(digest, len(data))), media_type="application/json")
