"""The two ASGI applications of a node: the link endpoint for agents and the HTTP API for platforms.

`fairlead serve` makes them for a node that has started; both share one `CredentialFailures`. The guard of the API runs
before every handler, so that no handler can forget it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from fairlead.app.access.agent_credentials import AgentCredentials, AgentProofs, Presented
from fairlead.app.access.approval_gate import ApprovalGate
from fairlead.app.access.auditor import OPERATION, Auditor
from fairlead.app.access.border import Border, shown_error
from fairlead.app.access.caller import SUBJECT
from fairlead.app.access.guard import AccessGuard, BearerToken, CredentialFailures
from fairlead.app.access.hosts import HostRules
from fairlead.app.access.platform_credentials import PlatformCredentials
from fairlead.app.api import openapi
from fairlead.app.api.operation import Operation
from fairlead.app.api.operations import OPERATIONS
from fairlead.app.api.problems import MethodNotAllowed, NotFound, expected_problem, problem, unexpected_problem
from fairlead.app.link_endpoint import LinkEndpoint
from fairlead.app.routes.access.approvals import ApprovalRoutes
from fairlead.app.routes.access.enrolment_tokens import EnrolmentTokenRoutes
from fairlead.app.routes.access.enrolments import ENROLMENTS_PATH, RENEWALS_PATH, EnrolmentRoutes
from fairlead.app.routes.access.pending_agents import PendingAgentRoutes
from fairlead.app.routes.access.rights import RightsRoutes
from fairlead.app.routes.access.tenants import TenantRoutes
from fairlead.app.routes.access.tokens import TokenRoutes
from fairlead.app.routes.agents import AgentRoutes
from fairlead.app.routes.commands import CommandRoutes
from fairlead.app.routes.contents import ContentRoutes
from fairlead.app.routes.events.event_sinks import EventSinkRoutes
from fairlead.app.routes.events.events import EventRoutes
from fairlead.app.routes.methods import MethodRoutes
from fairlead.app.routes.nodes import NodeRoutes
from fairlead.app.routes.open_commands import OpenCommandRoutes
from fairlead.app.routes.runs.run_start import RunStartRoutes
from fairlead.app.routes.runs.runs import RunRoutes
from fairlead.app.routes.runs.schedules import ScheduleRoutes
from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.subject import Subject
from fairlead.errors import FairleadError, InvalidRequest, PermissionDenied
from fairlead.identity.client_certificate import CertificateId
from fairlead.node import Node
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN, split_list

LINK_PATH = "/v1/link"

Handler = Callable[[Request], Awaitable[ASGIApp]]


def link_endpoint(node: Node, failures: CredentialFailures) -> LinkEndpoint:
    hosts = _hosts(node, node.settings.agent_token_is_public)
    shared = BearerToken(node.settings.agent_token, "agent")
    enrolment = node.identity.enrolment
    settings = node.settings
    certified = settings.link_tls_client_ca is not None or settings.link_client_cert_header
    proofs = AgentProofs(
        None if enrolment is None else enrolment.verify, node.agent_jwts.authenticate,
        CertificateId(settings.link_tls_client_id) if certified else None,
        settings.link_client_cert_header, node.identity.check_revoked, lambda: node.membership.now() // 1000,
    )  # fmt: skip
    own = AgentCredentials(shared, proofs, not node.settings.admits_shared_token)
    return LinkEndpoint(node, AccessGuard[Presented]("link", own, hosts, failures, node.agent_jwts.fetch_after))


def enrolment_routes(node: Node, failures: CredentialFailures) -> EnrolmentRoutes | None:
    """What enrols agents on the link port; None if this node has no issuer's key."""
    if node.identity.enrolment is None:
        return None
    hosts = _hosts(node, node.settings.agent_token_is_public)
    return EnrolmentRoutes(node.identity.enrolment, hosts, failures)


def link_app(endpoint: LinkEndpoint, enrolments: EnrolmentRoutes | None = None) -> ASGIApp:
    """The application on the link port, which serves `/v1/link` and, if agents enrol here, the paths of `enrolments`.

    It needs no router: Starlette's middleware and routing would cost a fifth of an accept.
    """
    lost = Starlette()  # answers everything else with 404, and handles the lifespan
    # RFC 9110 §15.5.22. It differs from the answer to a wrong path because a proxy that removes the header is the most
    # common reason.
    no_upgrade = PlainTextResponse(
        "agents connect to this path by WebSocket (RFC 6455), but this request does not ask for an upgrade: if the "
        "client sent the headers Upgrade and Connection, a proxy in between has removed them\n",
        status_code=426,
        headers={"upgrade": "websocket", "connection": "upgrade"},
    )
    wrong_path = PlainTextResponse(
        f"unknown path: agents connect to {LINK_PATH}; configure the agent with the gateway's address and no path, "
        "unless a proxy in between removes a prefix of the path\n",
        status_code=403,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] == LINK_PATH:
            await endpoint.enter(WebSocket(scope, receive, send))
        elif scope["type"] == "http" and scope["path"] == LINK_PATH:
            await no_upgrade(scope, receive, send)
        elif enrolments is not None and scope["type"] == "http" and scope["path"] in (ENROLMENTS_PATH, RENEWALS_PATH):
            await enrolments(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(wrong_path)
        else:
            await lost(scope, receive, send)

    return app


def _hosts(node: Node, development: bool) -> HostRules:
    """A development token is public, so with one no web page may reach this port through a browser on this machine."""
    settings = node.settings
    return HostRules(
        split_list(settings.allowed_hosts), split_list(settings.allowed_origins), loopback_only=development
    )


def _handlers(node: Node, auditor: Auditor) -> dict[str, Handler]:
    """The handler of each operation, by its name."""
    gate = ApprovalGate(node, auditor)
    commands, agents, tokens = (
        CommandRoutes(node, auditor, gate),
        AgentRoutes(node, auditor),
        TokenRoutes(node, auditor),
    )
    rights, enrolment, nodes = RightsRoutes(node), EnrolmentTokenRoutes(node, auditor), NodeRoutes(node, auditor)
    pending = PendingAgentRoutes(node, auditor)
    return {
        "postCommand": commands.post,
        "listCommands": OpenCommandRoutes(node, auditor).list,
        "getCommand": commands.get,
        "cancelCommand": commands.delete,
        "getResults": commands.results,
        "postInput": commands.input,
        "putContent": ContentRoutes(node, auditor).put,
        **RunStartRoutes(node, auditor, gate).handlers(),
        **RunRoutes(node, auditor, gate).handlers(),
        **ScheduleRoutes(node, auditor).handlers(),
        "listAgents": agents.list,
        "getAgent": agents.get,
        "labelAgent": agents.label,
        "deleteAgent": agents.delete,
        "getLink": agents.link,
        "disconnectAgent": agents.disconnect,
        "rankLinks": agents.worst,
        "listNodes": nodes.list,
        **EventRoutes(node, auditor).handlers(),
        **EventSinkRoutes(node, auditor).handlers(),
        "listTokens": tokens.list,
        "createToken": tokens.create,
        "revokeToken": tokens.revoke,
        "listEnrolmentTokens": enrolment.list,
        "createEnrolmentToken": enrolment.create,
        "revokeEnrolmentToken": enrolment.revoke,
        "listPendingAgents": pending.list,
        "approveAgent": pending.approve,
        "denyAgent": pending.deny,
        **ApprovalRoutes(node, auditor, gate).handlers(),
        "releaseAgent": enrolment.release,
        "revokeAgentKey": enrolment.revoke_key,
        "listMethods": MethodRoutes(node, auditor).list,
        "listTenants": TenantRoutes(node, auditor).list,
        "whoami": rights.whoami,
        "canI": rights.can_i,
        "getOpenapi": _openapi,
    }


def api_app(node: Node, failures: CredentialFailures) -> ASGIApp:
    """The application on the API port: every operation of the OpenAPI document, behind the guard."""
    auditor = Auditor(node.audit_trail.log)
    handlers = _handlers(node, auditor)
    border = Border(node)
    resources: dict[str, Resource] = {}
    for operation in OPERATIONS:
        resources.setdefault(operation.path, Resource(node.authorizer, auditor, border)).add(
            operation, handlers[operation.name]
        )
    # Paths without a parameter are looked up by name: routes are regular expressions that are tried one after the
    # other.
    exact = {path: resource for path, resource in resources.items() if "{" not in path}
    routes = [Route(path, resource) for path, resource in resources.items() if "{" in path]
    router = Router(routes, default=_not_found, redirect_slashes=False)
    token = node.settings.platform_token
    hosts = _hosts(node, token == DEVELOPMENT_PLATFORM_TOKEN)
    authorizer = node.authorizer
    credentials = PlatformCredentials(BearerToken(token, "platform"), authorizer.tokens, authorizer.users)
    return Api(exact, router, AccessGuard("api", credentials, hosts, failures, authorizer.users.fetch_after))


async def _openapi(request: Request) -> Response:
    return Response(openapi.document(), media_type="application/json")


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(NotFound(f"unknown path {scope['path']}: GET /v1/openapi.json lists all paths"))(scope, receive, send)


class Resource:
    """One path, with an operation for each of its methods.

    Raises MethodNotAllowed for other methods, PermissionDenied for a caller without any role for the operation, and
    InvalidRequest for a query parameter that the operation does not have: otherwise a misspelt filter would match
    everything.
    """

    def __init__(self, authorizer: Authorizer, auditor: Auditor, border: Border) -> None:
        self._authorizer = authorizer
        self._auditor = auditor
        self._border = border
        self._known: dict[str, tuple[Operation, Handler]] = {}

    def add(self, operation: Operation, handler: Handler) -> None:
        self._known[operation.method.upper()] = operation, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = self._known.get(scope["method"])
        if known is None:
            allow = ", ".join(self._known)
            raise MethodNotAllowed(f"{scope['path']} does not support {scope['method']}: use {allow}", allow=allow)
        operation, handler = known
        scope[OPERATION] = operation.name
        request = Request(scope, receive, send)
        try:
            subject = self._border.choose_tenant(request)
            if operation.needs is not None:
                self._authorizer.require_verb(subject, operation.needs)
            if scope["query_string"]:
                _check_query(request, operation)
            if request.path_params:
                await self._border.enter(request)
            answer = await handler(request)
        except PermissionDenied as e:
            await self._auditor.deny(request, e)
            raise
        await answer(scope, receive, send)


def _check_query(request: Request, operation: Operation) -> None:
    given = [name for name, _ in request.query_params.multi_items()]
    what = f"{request.method} {operation.path}"
    for name in given:
        if name not in operation.query:
            expected = ", ".join(operation.query) or "no query parameter"
            raise InvalidRequest(
                f"unknown query parameter {name[:64]!r} of {what}: expected {expected}", field=name[:64]
            )
        if given.count(name) > 1:
            raise InvalidRequest(
                f"query parameter {name} of {what} is given {given.count(name)} times: give it once", field=name
            )


class Api:
    """The routes behind the guard. It turns errors into problem documents.

    It replaces Starlette's two error middlewares, which wrap every message of a response. Handlers raise before they
    send anything, and a stream reports its own errors.
    """

    def __init__(self, exact: Mapping[str, ASGIApp], router: Router, guard: AccessGuard[Subject]) -> None:
        self._exact = exact
        self._router = router
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        try:
            scope[SUBJECT] = await self._guard.admit(scope)
            await self._exact.get(scope["path"], self._router)(scope, receive, send)
        except FairleadError as e:
            await expected_problem(scope, shown_error(scope.get(SUBJECT), e))(scope, receive, send)
        except Exception as e:
            await unexpected_problem(scope, e)(scope, receive, send)
