"""The requests for an approval in Redis: a hash of their states, which scripts change, and one of what was asked for.

`authorization` asks for an approval, decides and uses it. A bounded number is kept, each until it expires. What was
asked for never changes, so an approval is for exactly what was shown. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from fairlead.fleet import lua, schema
from fairlead.store.answer import Answer
from fairlead.store.reply import Reply, integer, items, octets, table, text
from fairlead.store.store import Store

REQUESTS_LIMIT: Final = 1_000
"""Requests of a tenant, at up to some 8 KB each."""
OWN_LIMIT: Final = 50
"""Requests of one caller."""


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What somebody wants to do. `person` is the user behind a service token, or else the first token that has made it,
    or itself. `terms` is the digest of everything that is approved, `digest` that of the payload, which is kept for the
    approver if it is small. Each of `approvers` is a list of roles, of which the approver needs one. Times are Redis
    TIME in ms."""

    id: str
    subject: str
    person: str
    kind: str
    method: str
    target: str
    count: int
    digest: str
    payload: str | None
    terms: str
    created: int
    expires: int
    approvers: tuple[tuple[str, ...], ...]
    content: str = ""
    """The digest of the content that is sent; "" for none."""
    covered: int = 0
    """If agents may join the run, how many of its first targets the approval covers; otherwise 0: it covers all."""


class ApprovalDecision(msgspec.Struct, frozen=True):
    """Who decided. What is kept about the approver suffices to find out later whether they still may."""

    subject: str
    at: int
    token_id: str = ""
    issuer: str = ""
    issuer_url: str = ""
    name: str = ""
    groups: tuple[str, ...] = ()
    key_id: str = ""
    """The key of a user's issuer that has signed these claims."""


class StoredApproval(msgspec.Struct, frozen=True):
    """`state` is pending, approved, denied or used, and `command` the id of what has used it."""

    request: ApprovalRequest
    state: str
    command: str = ""
    decision: ApprovalDecision | None = None


_encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(ApprovalRequest).decode
_decode_decision = msgspec.json.Decoder(ApprovalDecision).decode


class ApprovalRequests:
    def __init__(self, store: Store, tenant: str = "") -> None:
        self._store = store
        self._tenant = tenant
        self._approvals, self._requests = schema.APPROVALS, schema.APPROVAL_REQUESTS
        if tenant:  # with a slash, because a tenant may be called `all`
            self._approvals, self._requests = f"fl1:approvals:{{/{tenant}}}", f"fl1:approval_requests:{{/{tenant}}}"

    def of(self, tenant: str) -> ApprovalRequests:
        """The requests of another tenant. Each has its own."""
        return self if tenant == self._tenant else ApprovalRequests(self._store, tenant)

    def ask(self, request: ApprovalRequest) -> Answer[str]:
        """Keep a request. The answer is its id, or that of an equal one of the same caller that is not used yet, or
        `full` or `own` if there are as many as the fleet or the caller may have."""
        lifetime = request.expires - request.created
        who = _digest(request.subject)
        args = request.id, who, request.terms, lifetime, REQUESTS_LIMIT, OWN_LIMIT, _encode(request)
        return Answer(self._store.run(lua.REQUEST_APPROVAL, (self._approvals, self._requests), args), text)

    def decide(self, id: str, verdict: str, decision: ApprovalDecision) -> Answer[str]:
        """Approve or deny a request that is pending: `ok`, its state if it is another one, or `gone`."""
        args = id, verdict, _encode(decision)
        return Answer(self._store.run(lua.DECIDE_APPROVAL, (self._approvals,), args), text)

    def use(self, id: str, subject: str, terms: str, command: str) -> Answer[tuple[str, str]]:
        """Use an approval for the command or run with this id: `ok`, or why not (`gone`, `terms` or its state), and the
        id that has used it."""
        reply = self._store.run(lua.TAKE_APPROVAL, (self._approvals,), (id, _digest(subject), terms, command))
        return Answer(reply, _used)

    async def read(self, id: str) -> StoredApproval | None:
        """None if there is none with this id, or it has expired."""
        entry = self._store.submit("HGET", self._approvals, id)
        request = self._store.submit("HGET", self._requests, id)
        clock = Answer(self._store.submit("TIME"), items)
        state, asked, now = await Answer(entry, _optional), await Answer(request, _optional), _ms(await clock)
        found = _parse(asked, state) if asked and state else None
        return found if found is not None and found.request.expires > now else None

    async def all(self) -> list[StoredApproval]:
        """All that have not expired, the oldest first."""
        state: Answer[dict[bytes, bytes]] = Answer(self._store.submit("HGETALL", self._approvals), table)
        asked: Answer[dict[bytes, bytes]] = Answer(self._store.submit("HGETALL", self._requests), table)
        clock = Answer(self._store.submit("TIME"), items)
        states, requests, now = await state, await asked, _ms(await clock)
        found = [_parse(requests[id], entry) for id, entry in states.items() if id in requests]
        return sorted((one for one in found if one.request.expires > now), key=lambda one: one.request.created)


def _parse(request: bytes, entry: bytes) -> StoredApproval:
    """An entry is `state expires subject terms command decision`, of which the last may be empty."""
    state, _, _, _, command, decision = entry.decode().split(" ", 5)
    made = _decode_decision(decision) if decision else None
    return StoredApproval(_decode_request(request), state, "" if command == "-" else command, made)


def _optional(reply: Reply) -> bytes:
    return b"" if reply is None else octets(reply)


def _ms(clock: list[Reply]) -> int:
    """The reply to TIME in ms."""
    return integer(clock[0]) * 1000 + integer(clock[1]) // 1000


def _used(reply: Reply) -> tuple[str, str]:
    why, command = items(reply)
    return text(why), text(command)


def _digest(subject: str) -> str:
    return hashlib.sha256(subject.encode()).hexdigest()
