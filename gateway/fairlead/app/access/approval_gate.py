"""Lets through what a second person has approved, and asks for an approval of everything else that needs one.

The handlers that start something call `enter` when they know what it is, and `use` with its id when they are about to
start it. Both raise PermissionDenied, so that the audit log has every attempt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Final, NamedTuple

from starlette.requests import Request

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.authorization.approval_rule import ApprovalRule
from fairlead.authorization.policy import Access, Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import ApprovalRequired, InvalidRequest, PermissionDenied, Unavailable
from fairlead.fleet.approvals.approval_requests import (
    OWN_LIMIT,
    REQUESTS_LIMIT,
    ApprovalDecision,
    ApprovalRequest,
    StoredApproval,
)
from fairlead.methods.library import check_content
from fairlead.node import Node
from fairlead.oidc.user import OidcUser

PAYLOAD_SHOWN: Final = 4_096
"""Bytes; of a larger payload the approver sees the digest."""
ID_BYTES: Final = 8


class Intent(NamedTuple):
    """What is about to be started. `terms` are all that decides what it does, beside the payload."""

    kind: str
    method: str
    target: str
    targets: int
    payload: bytes
    terms: bytes
    content: str = ""
    """The digest of the content that goes with it, which is one of the terms; "" for none."""
    covered: int = 0
    """See ApprovalRequest."""

    @property
    def digest(self) -> str:
        """Binds the approval to exactly this."""
        fields = self.kind.encode(), self.method.encode(), self.terms, self.payload
        return hashlib.sha256(b"".join(len(one).to_bytes(8, "big") + one for one in fields)).hexdigest()


class Passage(NamedTuple):
    """An approval that may be used, and for what."""

    approval: str
    intent: Intent
    approver: str


class ApprovalGate:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._store = node.approvals
        self._contents = node.routing.contents
        self._authorizer = node.authorizer
        self._now = node.membership.now

    async def enter(self, request: Request, rules: Collection[ApprovalRule], intent: Intent) -> Passage | None:
        """The approval that the request names, checked; None if nothing needs one. Raises ApprovalRequired, after
        asking for one if none is named, and PermissionDenied."""
        named, subject = request.query_params.get("approval", ""), caller(request)
        if not rules:
            if named:
                raise InvalidRequest("this needs no approval: expected none (leave it out)", field="approval")
            return None
        check_content(intent.method, intent.payload, intent.content)  # whether or not its arguments are checked
        if not named:
            await self._ask(request, rules, intent)
        self._auditor.note(request, approval=named)
        found = await self._store.of(subject.tenant).read(named)
        if found is None or found.request.subject != subject.identity:
            raise PermissionDenied(
                f"there is no approval {named[:32]!r} of {subject.identity}: it has expired, or is somebody else's "
                "(post without it to ask for one)",
                subject=subject.identity,
            )
        if found.request.terms != intent.digest:
            raise PermissionDenied(
                f"approval {named} is for something else: expected the same request in all its members, with the same "
                "targets (post without it to ask for another one)",
                subject=subject.identity,
            )
        if found.state not in ("approved", "used") or found.decision is None:
            raise ApprovalRequired(
                f"approval {named} is {found.state}: expected that somebody with the roles for it has approved it"
                + (" (post without it to ask for another one)" if found.state == "denied" else ""),
                approval=named, state=found.state, subject=subject.identity,
            )  # fmt: skip
        if not self._is_approved(subject.tenant, found, rules):
            raise PermissionDenied(
                f"{found.decision.subject} has approved this and may no longer do so: expected the approval of "
                "somebody who may (post without it to ask for another one)",
                subject=subject.identity,
            )
        self._note(request, found)
        return Passage(named, intent, found.decision.subject)

    async def use(self, subject: Subject, passage: Passage, started: str) -> None:
        """Use the approval for the command or run with the id `started`, and for no other. Raises PermissionDenied."""
        why, first = await self._store.of(subject.tenant).use(
            passage.approval, subject.identity, passage.intent.digest, started
        )
        if why != "ok" or first != started:
            used = f"was used for {first}" if why == "ok" else "has expired" if why == "gone" else f"is {why}"
            raise PermissionDenied(
                f"approval {passage.approval} {used}: expected one that is approved and was not used (post without it "
                "to ask for another one)",
                subject=subject.identity,
            )

    def may_decide(self, subject: Subject, found: ApprovalRequest) -> bool:
        """Whether the subject has the roles to decide about a request, and is somebody else than who has asked."""
        return self._has_roles(subject, found.approvers) and not same_person(subject, found.subject, found.person)

    def _has_roles(self, subject: Subject, approvers: Collection[Collection[str]]) -> bool:
        policy = self._authorizer.policy
        if subject.administrator or not policy.decide(subject, Access(Verb.APPROVE)).allowed:
            return False
        roles = frozenset(policy.roles_of(subject))
        return all(not roles.isdisjoint(wanted) for wanted in approvers)

    async def has_approved(self, request: Request, started: str, rules: Collection[ApprovalRule], covered: int) -> bool:
        """Whether an approval that has not expired was used for the command or run with this id, covers as many of its
        first targets, and was given by somebody who may give all that the rules ask for now. It is noted for the
        log."""
        tenant = caller(request).tenant
        for one in await self._store.of(tenant).all():
            enough = one.request.covered >= covered or not one.request.covered
            if one.command == started and one.state == "used" and enough and self._is_approved(tenant, one, rules):
                self._note(request, one)
                return True
        return False

    def _note(self, request: Request, found: StoredApproval) -> None:
        assert found.decision is not None, "somebody has approved it"
        self._auditor.note(request, approval=found.request.id, detail=f"approved by {found.decision.subject}")

    def _is_approved(self, tenant: str, found: StoredApproval, rules: Collection[ApprovalRule]) -> bool:
        """Whether whoever approved still may, by the rules that hold now."""
        approver = None if found.decision is None else self._approver(tenant, found.decision)
        wanted = [*found.request.approvers, *(rule.approvers for rule in rules)]
        return approver is not None and self._has_roles(approver, wanted)

    def _approver(self, tenant: str, decision: ApprovalDecision) -> Subject | None:
        """Whoever has decided, as the policy sees them now; None if the token was revoked or has expired, or the issuer
        or its key is not trusted any more."""
        if decision.token_id:
            return self._authorizer.tokens.find(decision.token_id)
        groups = frozenset(decision.groups)
        user = OidcUser(decision.issuer, decision.issuer_url, decision.name, groups, decision.key_id, 0)
        return self._authorizer.users.absent(user, tenant)

    async def _ask(self, request: Request, rules: Collection[ApprovalRule], intent: Intent) -> None:
        subject, now = caller(request), self._now()
        shown = None
        if len(intent.payload) <= PAYLOAD_SHOWN:
            shown = intent.payload.decode(errors="backslashreplace")
        lifetime = min(rule.lifetime_ms for rule in rules)
        if intent.content:  # so that the approver can look at it, and the caller start it, as long as that is possible
            await self._contents.refer(subject.tenant, intent.content, lifetime)
        approvers = tuple(sorted({tuple(sorted(rule.approvers)) for rule in rules}))
        made = ApprovalRequest(
            secrets.token_hex(ID_BYTES), subject.identity, subject.person, intent.kind, intent.method, intent.target,
            intent.targets, hashlib.sha256(intent.payload).hexdigest(), shown, intent.digest, now,
            now + lifetime, approvers, intent.content, intent.covered,
        )  # fmt: skip
        id = await self._store.of(subject.tenant).ask(made)
        if id in ("full", "own"):
            limit = f"you have {OWN_LIMIT}" if id == "own" else f"there are {REQUESTS_LIMIT}"
            raise Unavailable(f"{limit} requests for an approval, the most that are kept: wait until some have expired")
        self._auditor.note(request, approval=id)
        roles = " and ".join(" or ".join(wanted) for wanted in approvers)
        raise ApprovalRequired(
            f"method {intent.method} needs an approval on {intent.target}: another person with the role {roles} can "
            f"give it (`fairlead approvals approve {id}`); then post the same with approval={id}",
            approval=id, state="pending", subject=subject.identity,
        )  # fmt: skip


def same_person(subject: Subject, identity: str, person: str) -> bool:
    """Whether the subject is, as far as anybody can know, whoever has the identity, or a token that they have made."""
    return subject.identity == identity or bool(person and person == subject.person)


def decision_of(subject: Subject, now: int) -> ApprovalDecision:
    user = subject.user
    if user is None:
        return ApprovalDecision(subject.identity, now, subject.token_id)
    return ApprovalDecision(
        subject.identity, now, "", user.issuer, user.issuer_url, user.name, tuple(sorted(user.groups)), user.key_id
    )
