"""The handlers of `/v1/tokens`: list, create and revoke service tokens.

Only a token's digest is stored, so its text is in the answer to its creation and nowhere else.
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
from fairlead.authorization.policy import Verb
from fairlead.authorization.service_token import ID_BYTES, SECRET_BYTES, is_token_id, new_token, subject_of
from fairlead.authorization.subject import Subject
from fairlead.errors import BusUnavailable, InvalidRequest, PermissionDenied, Unavailable
from fairlead.fleet.tokens.service_tokens import ServiceToken
from fairlead.fleet.tokens.tenant_share import token_share
from fairlead.node import Node

BODY_LIMIT = 64 << 10

_new_token = msgspec.json.Decoder(access_schemas.NewServiceToken)
_encode = msgspec.json.Encoder().encode


class TokenRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._tokens = node.service_tokens
        self._authorizer = node.authorizer
        self._membership = node.membership

    async def list(self, request: Request) -> Response:
        stored = await self._tokens.read()
        own = (token for token in stored.tokens.values() if token.tenant == caller(request).tenant)
        tokens = sorted(own, key=lambda token: (token.name, token.created, token.id))
        await self._auditor.allow(request, len(tokens))
        shown = [self._describe(token, stored.used.get(token.id, 0)) for token in tokens]
        return Response(_encode(access_schemas.ServiceTokenList(shown)), media_type="application/json")

    async def create(self, request: Request) -> Response:
        body = decoded(_new_token, await read_body(request, BODY_LIMIT))
        creator = caller(request)
        self._authorizer.require_still(creator, (Verb.TOKENS,))
        id, digest, text = new_token(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
        now = self._membership.now()
        expires = now + int(body.lifetime * 1000)
        roles = self._limit_of(body, creator)
        token = ServiceToken(
            id, body.name, digest, now, expires, creator.identity, roles, creator.person, tenant=creator.tenant
        )
        limit = "" if roles is None else f" limited to {','.join(roles)}"
        self._auditor.note(request, detail=f"{token.name} ({token.id}){limit}")
        self._check_roles(token, creator)
        await self._auditor.allow(request)
        share = token_share(len(self._authorizer.policy.all_tenants))
        if not await self._tokens.add(token, secrets.token_hex(8), now, share):
            raise Unavailable(
                f"there are {share} service tokens{_where(token)}, the maximum: revoke those that are not needed"
            )
        await self._refresh()
        shown = self._describe(token, 0)
        answer = access_schemas.CreatedServiceToken(**msgspec.structs.asdict(shown), token=text)
        return Response(_encode(answer), 201, {"cache-control": "no-store"}, media_type="application/json")

    async def revoke(self, request: Request) -> Response:
        id = request.path_params["token"]
        if not is_token_id(id):  # what it is instead may be a whole token, so it is not repeated
            raise InvalidRequest(
                "invalid id of a service token: expected 12 digits of 0-9 a-f, which stand after `fl_` in the token",
                field="token",
            )
        await self._auditor.allow(request)
        token = await self._tokens.find(id)
        own = token is not None and token.tenant == caller(request).tenant
        if not own or not await self._tokens.remove(id, secrets.token_hex(8)):
            raise NotFound(f"there is no service token {id!r}: it was revoked before, or never created")
        await self._refresh()
        return Response(status_code=204)

    async def _refresh(self) -> None:
        """What has just been changed holds on this node at once."""
        try:
            await self._authorizer.tokens.refresh()
        except BusUnavailable:
            pass  # the change is made; this node reads it in its next attempt

    def _limit_of(self, body: access_schemas.NewServiceToken, creator: Subject) -> tuple[str, ...] | None:
        """The roles to which a new token is limited. One that no administrator creates is limited to the roles of its
        name now: otherwise it would get those that are bound to the name later, which its creator may not have."""
        if body.roles is not None:
            return tuple(sorted(set(body.roles)))
        if creator.administrator:
            return None
        return tuple(sorted(self._authorizer.policy.roles_of_token(creator.tenant, body.name)))

    def _check_roles(self, token: ServiceToken, creator: Subject) -> None:
        """Raises InvalidRequest if the token would have no role, or is limited to one that is not bound to its name,
        and PermissionDenied if it would have a role that its creator has not."""
        policy = self._authorizer.policy
        bound = policy.roles_of_token(token.tenant, token.name)
        if not bound:
            raise InvalidRequest(
                f"no role is bound to the token {token.name}{_where(token)}, so that it could do nothing: expected its "
                "name among the `tokens` of a binding in the file of roles",
                field="name",
            )
        for role in token.roles or ():
            if role not in bound:
                raise InvalidRequest(
                    f"role {role} is not bound to the token {token.name}: expected {', '.join(sorted(bound))} (or bind "
                    "it in the file of roles)",
                    field="roles",
                )
        if creator.administrator:
            return
        more = sorted(set(policy.roles_of(subject_of(token))) - set(policy.roles_of(creator)))
        if more:
            raise PermissionDenied(
                f"{creator.identity} may not create a token with the role {more[0]}: expected only roles that it has "
                "itself (limit the token with `roles`)",
                subject=creator.identity,
            )

    def _describe(self, token: ServiceToken, used: int) -> access_schemas.StoredServiceToken:
        return access_schemas.StoredServiceToken(
            token.id, token.name, None if token.roles is None else list(token.roles), iso(token.created) or "",
            token.created_by, iso(token.expires) or "", token.expires <= self._membership.now(), iso(used),
        )  # fmt: skip


def _where(token: ServiceToken) -> str:
    return f" of the tenant {token.tenant}" if token.tenant else ""
