"""The border of the API: what a request names is taken into the tenant of its caller, before any handler sees it.

The resource of a path calls it for every operation. Every parameter of a path has its entry here, and one without an
entry fails, so a new operation cannot forget its tenant: an agent's id is qualified, which makes it the id of another
agent or of none in any other tenant, and what has an id of its own is unknown unless it is the tenant's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from fairlead.app.access.caller import SUBJECT, caller
from fairlead.app.api.headers import find_header
from fairlead.authorization.subject import Subject
from fairlead.authorization.tenant_choice import HEADER
from fairlead.errors import FairleadError, InvalidRequest
from fairlead.node import Node
from fairlead.tenant import qualified, without_tenant
from fairlead.wire.ids import check_agent_id, check_command_id, check_digest, check_run_id, check_schedule_id

_HEADER = HEADER.lower().encode()


class Border:
    def __init__(self, node: Node) -> None:
        self._authorizer = node.authorizer
        self._runs = node.routing.runs.results
        self._kinds: dict[str, Callable[[Subject, str], Awaitable[str]]] = {
            "agent": self._agent,
            "command": self._command,
            "run": self._run,
            "token": self._token,
            "approval": self._token,
            "digest": self._digest,
            "schedule": self._schedule,
            "group": self._token,
            "sink": self._token,
            "letter": self._token,
        }

    def choose_tenant(self, request: Request) -> Subject:
        """Let the caller act in the tenant that the request names. Raises PermissionDenied and InvalidRequest."""
        named = find_header(request, _HEADER)
        if named is not None and sum(name == _HEADER for name, _ in request.scope["headers"]) > 1:
            # Of two, a proxy may have set the other.
            raise InvalidRequest(f"several headers {HEADER}: expected one", field=HEADER)
        subject = self._authorizer.in_tenant(caller(request), named)
        request.scope[SUBJECT] = subject
        return subject

    async def enter(self, request: Request) -> None:
        """Take what the path names into the caller's tenant. Raises InvalidRequest, and CommandUnknown."""
        params, subject = request.path_params, caller(request)
        for name, value in params.items():
            params[name] = await self._kinds[name](subject, value)

    async def _agent(self, subject: Subject, agent: str) -> str:
        return qualified(subject.tenant, check_agent_id(agent))

    async def _command(self, subject: Subject, given: str) -> str:
        command = check_command_id(given)
        if self._authorizer.separates(subject):
            await self._authorizer.require_known_command(subject, command)
        return command

    async def _run(self, subject: Subject, given: str) -> str:
        run = check_run_id(given)
        if self._authorizer.separates(subject):
            await self._runs.look_up(run, subject.tenant)
        return run

    async def _schedule(self, _subject: Subject, schedule: str) -> str:
        """The handler looks each up in the caller's tenant."""
        return check_schedule_id(schedule)

    async def _digest(self, _subject: Subject, digest: str) -> str:
        """Each tenant has contents of its own."""
        return check_digest(digest)

    async def _token(self, _subject: Subject, token: str) -> str:
        """The handlers of tokens, approvals, groups and sinks look each up in the caller's tenant."""
        return token


def shown_error(subject: Subject | None, error: FairleadError) -> FairleadError:
    """The error as its caller may see it: with the ids of agents as its tenant knows them."""
    if subject is not None and subject.tenant:
        tenant = subject.tenant
        error.message = without_tenant(error.message, tenant)
        for name, value in error.details.items():
            if isinstance(value, str):
                error.details[name] = without_tenant(value, tenant).removeprefix(qualified(tenant, ""))
    return error
