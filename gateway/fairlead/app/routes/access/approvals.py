"""The handlers of `/v1/approvals`: what waits for a second person, and what that person decides.

A request names exactly what would be started and never changes, so its id is all that a decision has to name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.approval_gate import ApprovalGate, decision_of, same_person
from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import access_schemas
from fairlead.app.api.problems import NotFound
from fairlead.app.api.schemas import iso
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, PermissionDenied
from fairlead.fleet.approvals.approval_requests import StoredApproval
from fairlead.node import Node

CONTENT_SHOWN: Final = 64 << 10
"""Bytes; of a larger content the approver sees the digest: nobody reads that much before a decision."""

_encode = msgspec.json.Encoder().encode


class ApprovalRoutes:
    def __init__(self, node: Node, auditor: Auditor, gate: ApprovalGate) -> None:
        self._auditor = auditor
        self._gate = gate
        self._store = node.approvals
        self._contents = node.routing.contents
        self._now = node.membership.now

    def handlers(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """The handler of each operation."""
        return {
            "listApprovals": self.list,
            "getApproval": self.get,
            "approveRequest": self.approve,
            "denyRequest": self.deny,
        }

    async def list(self, request: Request) -> Response:
        subject = caller(request)
        found = [one for one in await self._store.of(subject.tenant).all() if self._may_see(subject, one)]
        await self._auditor.allow(request, len(found))
        shown = access_schemas.ApprovalList([self._describe(subject, one) for one in found])
        return Response(_encode(shown), media_type="application/json")

    async def get(self, request: Request) -> Response:
        subject = caller(request)
        found = await self._find(request)
        await self._auditor.allow(request)
        text = await self._content_text(subject, found)
        return Response(_encode(self._describe(subject, found, text)), media_type="application/json")

    async def approve(self, request: Request) -> Response:
        return await self._decide(request, "approved")

    async def deny(self, request: Request) -> Response:
        return await self._decide(request, "denied")

    async def _decide(self, request: Request, verdict: str) -> Response:
        subject = caller(request)
        found = await self._find(request)
        asked = found.request
        about = asked.target if asked.kind == "command" else ""
        self._auditor.note(
            request, approval=asked.id, method=asked.method, agent=about, digest=asked.digest, content=asked.content,
            selector="" if about else asked.target, detail=f"{asked.kind} of {asked.subject}",
        )  # fmt: skip
        if subject.administrator:
            raise PermissionDenied(
                "the platform token names nobody, and an approval is of a person: expected a user or a service token "
                "(log in)",
                subject=subject.identity,
            )
        if same_person(subject, asked.subject, asked.person):
            raise PermissionDenied(
                f"{subject.identity} may not decide about its own request: expected another person",
                subject=subject.identity,
            )
        if not self._gate.may_decide(subject, asked):
            roles = " and ".join(" or ".join(wanted) for wanted in asked.approvers)
            raise PermissionDenied(
                f"{subject.identity} may not decide about this request: expected the role {roles}",
                subject=subject.identity,
            )
        await self._auditor.allow(request, asked.count)
        why = await self._store.of(subject.tenant).decide(asked.id, verdict, decision_of(subject, self._now()))
        if why == "gone":
            raise _unknown(asked.id)
        if why != "ok":
            raise InvalidRequest(f"request {asked.id} is {why} already: expected one that is pending", field="approval")
        return Response(status_code=204)

    async def _find(self, request: Request) -> StoredApproval:
        """The request that the path names. Raises NotFound, also for one that the caller may not see."""
        id = request.path_params["approval"][:32]
        self._auditor.note(request, approval=id)
        found = await self._store.of(caller(request).tenant).read(id)
        if found is None or not self._may_see(caller(request), found):
            await self._auditor.allow(request, 0)
            raise _unknown(id)
        return found

    def _may_see(self, subject: Subject, found: StoredApproval) -> bool:
        asked = found.request
        return (
            subject.administrator
            or subject.identity == asked.subject
            or self._gate.may_decide(subject, asked)
            or (same_person(subject, asked.subject, asked.person))
        )

    async def _content_text(self, subject: Subject, found: StoredApproval) -> str | None:
        """The content that goes with a request, for whoever decides about it."""
        asked = found.request
        if not asked.content or not self._gate.may_decide(subject, asked):
            return None
        data = await self._contents.read(subject.tenant, asked.content)
        if data is None or len(data) > CONTENT_SHOWN:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None

    def _describe(
        self, subject: Subject, one: StoredApproval, content_text: str | None = None
    ) -> access_schemas.Approval:
        asked, decision = one.request, one.decision
        return msgspec.convert(
            {
                **msgspec.structs.asdict(asked), "state": one.state, "targets": asked.count,
                "content": asked.content or None, "content_text": content_text,
                "approvers": [list(wanted) for wanted in asked.approvers], "created": iso(asked.created),
                "expires": iso(asked.expires), "decided_by": decision.subject if decision is not None else None,
                "decided": iso(decision.at) if decision is not None else None, "command": one.command or None,
                "mine": subject.identity == asked.subject,
                "decidable": one.state == "pending" and self._gate.may_decide(subject, asked),
            },
            access_schemas.Approval,
        )  # fmt: skip


def _unknown(id: str) -> NotFound:
    return NotFound(f"there is no request {id!r} for an approval: it has expired, or you may not see it")
