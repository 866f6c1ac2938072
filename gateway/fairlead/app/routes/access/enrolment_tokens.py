"""The handlers of `/v1/enrolment-tokens` and of an agent's key: who may become an agent of the fleet, and who is one.

Only a token's digest is stored, so its text is in the answer to its creation and nowhere else. A node without an
issuer's key enrols nobody and says so.
"""

from __future__ import annotations

import secrets

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api import access_schemas
from fairlead.app.api.problems import NotFound
from fairlead.app.api.request_body import decoded, read_body
from fairlead.app.api.schemas import iso
from fairlead.app.routes.commands import flag
from fairlead.authorization.policy import Verb
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, PermissionDenied, Unavailable
from fairlead.fleet.tokens.enrolment_tokens import StoredEnrolment
from fairlead.fleet.tokens.tenant_share import token_share
from fairlead.identity.credential import LABELS_LIMIT, LEEWAY, LIFETIME_LIMIT
from fairlead.identity.enrolment_token import (
    ID_BYTES,
    SECRET_BYTES,
    EnrolmentToken,
    check_pattern,
    is_token_id,
    new_token,
)
from fairlead.node import Node
from fairlead.tenant import local_id, tenant_of

BODY_LIMIT = 8 << 10

_new_token = msgspec.json.Decoder(access_schemas.NewEnrolmentToken)
_decode = msgspec.json.Decoder(EnrolmentToken).decode
_encode = msgspec.json.Encoder().encode


class EnrolmentTokenRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._identity = node.identity
        self._authorizer = node.authorizer
        self._membership = node.membership

    async def list(self, request: Request) -> Response:
        stored = await self._identity.tokens.all(self._membership.now(), caller(request).tenant)
        shown = sorted((self._describe(one) for one in stored), key=lambda token: token.created, reverse=True)
        await self._auditor.allow(request, len(shown))
        return Response(_encode(access_schemas.EnrolmentTokenList(shown)), media_type="application/json")

    async def create(self, request: Request) -> Response:
        body = decoded(_new_token, await read_body(request, BODY_LIMIT))
        creator = caller(request)
        self._authorizer.require_still(creator, (Verb.ENROLMENT,))
        self._check_labels(creator, body.labels)
        now = self._membership.now()
        id, digest, text = new_token(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
        expires = now + int(body.lifetime * 1000)
        token = EnrolmentToken(
            id,
            digest,
            now,
            expires,
            check_pattern(body.agents),
            body.uses,
            creator.identity,
            body.labels,
            body.rate,
            body.approval,
            creator.tenant,
        )
        labels = "".join(f" {key}={value}" for key, value in body.labels.items())
        rate = f" at {token.rate}/m" if token.rate else ""
        self._auditor.note(request, detail=f"{id} for {token.uses} agents {token.agents}{rate}{labels}")
        await self._auditor.allow(request)
        if self._identity.enrolment is None:
            raise InvalidRequest(
                "this gateway enrols no agents: expected the setting issuer_key, the file of a private key that all "
                "nodes share"
            )
        share = token_share(len(self._authorizer.policy.all_tenants))
        if await self._identity.tokens.full(token.tenant, share):
            where = f" of the tenant {token.tenant}" if token.tenant else ""
            raise Unavailable(
                f"there are {share} enrolment tokens{where}, the maximum: revoke those that are not needed"
            )
        await self._identity.tokens.add(id, _encode(token), expires, token.tenant)
        shown = msgspec.structs.asdict(self._describe(StoredEnrolment(_encode(token), 0)))
        answer = access_schemas.CreatedEnrolmentToken(**shown, token=text)
        return Response(_encode(answer), 201, {"cache-control": "no-store"}, media_type="application/json")

    def _check_labels(self, creator: Subject, labels: dict[str, str]) -> None:
        """Raises PermissionDenied if the creator may not grant labels, on which rights depend, and InvalidRequest."""
        if labels and not creator.administrator:
            raise PermissionDenied(
                f"{creator.identity} may not create enrolment tokens that grant labels, because labels give rights: "
                "expected an administrator",
                subject=creator.identity,
            )
        if (size := len(_encode(labels))) > LABELS_LIMIT:
            raise InvalidRequest(
                f"the labels take {size} bytes as JSON: expected {LABELS_LIMIT} at most", field="labels"
            )

    async def revoke(self, request: Request) -> Response:
        id = request.path_params["token"]
        if not is_token_id(id):  # what it is instead may be a whole token, so it is not repeated
            raise InvalidRequest(
                "invalid id of an enrolment token: expected 12 digits of 0-9 a-f, which stand after `fl_enrol_` in the "
                "token",
                field="token",
            )
        with_agents = flag(request, "agents")
        if with_agents:
            self._auditor.note(request, detail=f"{id} with the keys of its agents")
        await self._auditor.allow(request)
        tenant = caller(request).tenant
        if not await self._identity.tokens.belongs(id, tenant):
            raise _unknown_token(id)
        known = with_agents and await self._revoke_agents(id, tenant)
        await self._identity.pending.remove_token(id, tenant)
        if not await self._identity.tokens.remove(id, tenant) and not known:
            raise _unknown_token(id)
        return Response(status_code=204)

    async def _revoke_agents(self, id: str, tenant: str) -> bool:
        """Revoke every key that was enrolled with a token. An id that has another key by now keeps it. Returns False if
        there is no such token."""
        enrolled = await self._identity.tokens.end(id)
        if enrolled is None:
            return False
        await self._identity.revocations.require_room(tenant, len(enrolled))
        for agent, thumbprint in enrolled:
            if await self._identity.keys.refuse(agent, thumbprint):
                await self._identity.revocations.revoke(agent, thumbprint)
        return True

    async def release(self, request: Request) -> Response:
        """End the binding of an agent's id to its key."""
        agent = request.path_params["agent"]
        await self._auditor.allow(request)
        if not await self._identity.keys.release(agent, LIFETIME_LIMIT + LEEWAY):
            raise NotFound(f"the id of agent {local_id(agent)!r} is not bound to a key: it may enrol with any")
        return Response(status_code=204)

    async def revoke_key(self, request: Request) -> Response:
        """Revoke the key of an agent: its links are closed everywhere, and nobody has the id until it is released."""
        agent = request.path_params["agent"]
        await self._auditor.allow(request)
        await self._identity.revocations.require_room(
            tenant_of(agent)
        )  # before the binding says that the key is revoked
        thumbprint = await self._identity.keys.revoke(agent)
        if not thumbprint:
            raise NotFound(f"the id of agent {local_id(agent)!r} is not bound to a key, so no key can be revoked")
        await self._identity.revocations.revoke(agent, thumbprint)
        answer = access_schemas.RevokedAgentKey(local_id(agent), thumbprint)
        return Response(_encode(answer), media_type="application/json")

    def _describe(self, stored: StoredEnrolment) -> access_schemas.StoredEnrolmentToken:
        token = _decode(stored.token)
        return access_schemas.StoredEnrolmentToken(
            token.id, token.agents, token.uses, stored.used, iso(token.created) or "", token.created_by,
            iso(token.expires) or "", token.expires <= self._membership.now(), token.labels, token.rate, token.approval,
        )  # fmt: skip


def _unknown_token(id: str) -> NotFound:
    return NotFound(f"there is no enrolment token {id!r}: it was revoked before, or never created")
