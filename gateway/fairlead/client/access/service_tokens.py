"""The tokens of programs and persons that call the API: `Client.tokens`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from fairlead.client.transport import Request, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A service token without its secret. `roles` are those to which it is limited, None for all that are bound to its
    name. Times are RFC 3339.
    """

    id: str
    name: str
    roles: list[str] | None
    created: str
    created_by: str
    expires: str
    expired: bool = False
    used: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken(TokenInfo):
    """A new service token with its text."""

    token: str


class _Tokens(msgspec.Struct):
    tokens: list[TokenInfo]


class ServiceTokenRequests:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, roles: Collection[str] | None, lifetime: float) -> IssuedToken:
        """Create a token that expires after `lifetime` seconds. `roles` limits it to some of those that are bound to
        its name."""
        order = {"name": name, "roles": None if roles is None else list(roles), "lifetime": lifetime}
        headers = {"Content-Type": "application/json"}
        request = Request("POST", "/v1/tokens", None, headers, msgspec.json.encode(order))
        return await self._transport.ask(request, IssuedToken)

    async def revoke(self, token: str) -> None:
        """Revoke the token with this id."""
        await self._transport.call(Request("DELETE", f"/v1/tokens/{quote(token, safe='')}"))

    async def list(self) -> list[TokenInfo]:
        """All tokens, without their secrets."""
        return (await self._transport.ask(Request("GET", "/v1/tokens"), _Tokens)).tokens
