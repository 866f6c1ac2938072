"""The enrolments that wait for an administrator, in Redis: one hash for each tenant, with an entry for each agent and
key.

A bounded number of them is kept, each until its agent has not asked for a day. Raises BusUnavailable if Redis does not
answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from fairlead.fleet import lua, schema
from fairlead.fleet.tenants.tenant_key import tenant_key
from fairlead.store.answer import Answer
from fairlead.store.reply import Reply, integer, table, text
from fairlead.store.store import Store
from fairlead.tenant import tenant_of

PENDING_LIMIT: Final = 1_000
"""Enrolments of a tenant that wait."""
TOKEN_LIMIT: Final = PENDING_LIMIT // 2
"""Enrolments with one token that wait, so that one that was stolen does not keep out the agents of all others."""
KEPT_MS: Final = 24 * 3600_000
"""How long one is kept after its agent has asked last, and how long a denial holds."""


@dataclass(frozen=True, slots=True)
class PendingEnrolment:
    """`state` is pending, approved or denied; `first` and `last` are when it was asked for (Redis TIME in ms), and
    `token` is the id of the enrolment token."""

    agent: str
    thumbprint: str
    state: str
    first: int
    last: int
    token: str
    address: str


class PendingEnrolments:
    def __init__(self, store: Store) -> None:
        self._store = store

    def ask(self, agent: str, thumbprint: str, token: str, address: str) -> Answer[str]:
        """Whether the enrolment with this token was `approved` or `denied`; otherwise it is `pending` from now on,
        unless the list, or the token's half of it, is `full`."""
        reply = self._store.run(
            lua.ASK_APPROVAL, (_key(tenant_of(agent)),),
            (f"{agent} {thumbprint}", token, address, KEPT_MS, PENDING_LIMIT, TOKEN_LIMIT),
        )  # fmt: skip
        return Answer(reply, text)

    def decide(self, agent: str, thumbprint: str, token: str, *, approved: bool) -> Answer[bool]:
        """Approve or deny an enrolment. The answer is False if nobody with this key waits for this id with this
        token."""
        verdict = "approved" if approved else "denied"
        reply = self._store.run(
            lua.DECIDE_ENROLMENT, (_key(tenant_of(agent)),), (f"{agent} {thumbprint}", token, verdict)
        )
        return Answer(reply, lambda reply: integer(reply) == 1)

    async def remove_token(self, token: str, tenant: str) -> None:
        """Remove all enrolments with a token of the tenant that was revoked."""
        entries = table(await self._store.submit("HGETALL", _key(tenant)))
        gone = [who for who, entry in entries.items() if _parse(who.decode(), entry.decode()).token == token]
        if gone:
            await self._store.submit("HDEL", _key(tenant), *gone)

    def forget(self, agent: str, thumbprint: str) -> asyncio.Future[Reply]:
        """Forget an enrolment that was approved and is made."""
        return self._store.submit("HDEL", _key(tenant_of(agent)), f"{agent} {thumbprint}")

    async def all(self, now: int, tenant: str) -> list[PendingEnrolment]:
        """All of the tenant that are kept at the time `now`, ordered by agent and then by time."""
        answer: Answer[dict[bytes, bytes]] = Answer(self._store.submit("HGETALL", _key(tenant)), table)
        found = [_parse(who.decode(), entry.decode()) for who, entry in (await answer).items()]
        return sorted((one for one in found if now - one.last <= KEPT_MS), key=lambda one: (one.agent, one.first))


def _key(tenant: str) -> str:
    return tenant_key(schema.PENDING_ENROLMENTS, tenant)


def _parse(who: str, entry: str) -> PendingEnrolment:
    agent, _, thumbprint = who.partition(" ")
    state, first, last, token, address = entry.split(" ", 4)
    return PendingEnrolment(agent, thumbprint, state, int(first), int(last), token, address)
