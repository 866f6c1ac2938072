"""`/v1/enrolments` and `/v1/renewals` on the link port: an agent gets its first credential, and the next ones.

Nobody has shown a token when they are called, so the answers to failures are delayed as those to wrong tokens are.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.app.access.guard import CredentialFailures, client_key
from fairlead.app.access.hosts import HostRules
from fairlead.app.api.problems import MethodNotAllowed, expected_problem, unexpected_problem
from fairlead.app.api.request_body import decoded, read_body
from fairlead.carrier.http_server.admission import authenticated
from fairlead.errors import FairleadError, Unauthorized
from fairlead.routing.agents.enrolment import Enrolment, EnrolmentRequest

ENROLMENTS_PATH = "/v1/enrolments"
RENEWALS_PATH = "/v1/renewals"
BODY_LIMIT = 8 << 10


class RenewalRequest(msgspec.Struct):
    credential: str
    proof: str


class IssuedCredential(msgspec.Struct):
    """`lifetime` is the seconds for which the credential is valid from now on."""

    credential: str
    lifetime: int


_enrolment = msgspec.json.Decoder(EnrolmentRequest)
_renewal = msgspec.json.Decoder(RenewalRequest)
_encode = msgspec.json.Encoder().encode


class EnrolmentRoutes:
    """An ASGI application for the two paths."""

    def __init__(self, enrolment: Enrolment, hosts: HostRules, failures: CredentialFailures) -> None:
        self._enrolment = enrolment
        self._hosts = hosts
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp
        try:
            answer = await self._answer(scope, Request(scope, receive, send))
        except FairleadError as e:
            answer = expected_problem(scope, e)
        except Exception as e:
            answer = unexpected_problem(scope, e)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, request: Request) -> Response:
        self._hosts.check(scope["headers"])
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['path']} does not support {scope['method']}: use POST", allow="POST")
        body = await read_body(request, BODY_LIMIT)
        try:
            if scope["path"] == ENROLMENTS_PATH:
                issued = await self._enrolment.enrol(decoded(_enrolment, body), client_key(scope))
            else:
                renewal = decoded(_renewal, body)
                issued = await self._enrolment.renew(renewal.credential, renewal.proof)
        except Unauthorized as e:
            raise await self._failures.note("link", client_key(scope), e) from None
        authenticated(scope)
        headers = {"cache-control": "no-store"}
        return Response(
            _encode(IssuedCredential(issued, self._enrolment.lifetime)), 201, headers, media_type="application/json"
        )
