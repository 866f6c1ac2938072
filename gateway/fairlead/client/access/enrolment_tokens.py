"""The tokens with which new agents enrol: `Client.enrolment_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from fairlead.client.transport import Request, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentTokenInfo:
    """An enrolment token without its secret: it enrols `uses` agents whose ids match the pattern `agents`, and has
    enrolled `used`, each with `labels`; `rate` is how many it enrols in a minute, 0 for any number. Times are RFC 3339.
    """

    id: str
    agents: str
    uses: int
    used: int
    created: str
    created_by: str
    expires: str
    expired: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    rate: int = 0
    approval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedEnrolmentToken(EnrolmentTokenInfo):
    """A new enrolment token with its text."""

    token: str


class _EnrolmentTokens(msgspec.Struct):
    tokens: list[EnrolmentTokenInfo]


class EnrolmentTokenRequests:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        agents: str,
        uses: int,
        lifetime: float,
        labels: Mapping[str, str] | None = None,
        rate: int = 0,
        approval: bool = False,
    ) -> IssuedEnrolmentToken:
        """Create a token with which `uses` agents, whose ids match the pattern `agents`, enrol within `lifetime`
        seconds, and get `labels`; with a `rate`, at most so many in a minute, and with `approval` when an administrator
        has approved each of them."""
        order = {
            "agents": agents, "uses": uses, "lifetime": lifetime, "labels": dict(labels or {}), "rate": rate,
            "approval": approval,
        }  # fmt: skip
        headers = {"Content-Type": "application/json"}
        request = Request("POST", "/v1/enrolment-tokens", None, headers, msgspec.json.encode(order))
        return await self._transport.ask(request, IssuedEnrolmentToken)

    async def revoke(self, token: str, agents: bool = False) -> None:
        """Revoke the token with this id, and with `agents` the keys that were enrolled with it."""
        params = {"agents": "true"} if agents else None
        await self._transport.call(Request("DELETE", f"/v1/enrolment-tokens/{quote(token, safe='')}", params))

    async def list(self) -> list[EnrolmentTokenInfo]:
        """All tokens, the newest first, without their secrets."""
        return (await self._transport.ask(Request("GET", "/v1/enrolment-tokens"), _EnrolmentTokens)).tokens
