"""The enrolment tokens in Redis, a hash for each: the token, a field for each agent and key that it has enrolled, and
the bucket of its rate. The index of their ids, qualified by their tenants, says whose they are.

What a token means is known to `identity`; here it is octets. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairlead.fleet import lua, schema
from fairlead.fleet.tokens.tenant_share import MOST
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, items, octets, text
from fairlead.store.store import Store
from fairlead.tenant import local_id, qualified, tenant_of

KEPT_MS: Final = 7 * 24 * 3600_000
"""How long an expired token is kept, so that its refusal can say that it has expired."""


@dataclass(frozen=True, slots=True)
class StoredEnrolment:
    token: bytes
    used: int


class TakenUse(NamedTuple):
    """Whether a use was `taken`. If not, `wait_ms` is the time until the token's rate allows one, or 0 if the token has
    none left or is gone."""

    taken: bool
    wait_ms: int = 0


class EnrolmentTokens:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, id: str, token: bytes, expires: int, tenant: str = "") -> asyncio.Future[Reply]:
        """Store a token of a tenant with a new id until a week after `expires` (ms)."""
        key = schema.enrolment_key(id)
        # First in the index: a token that is not there could not be revoked.
        self._store.submit("ZADD", schema.ENROLMENT_TOKENS, expires, qualified(tenant, id))
        self._store.submit("HSET", key, "token", token)
        return self._store.submit("PEXPIREAT", key, expires + KEPT_MS)

    async def all(self, now: int, tenant: str) -> list[StoredEnrolment]:
        """All tokens of a tenant, except those that expired more than a week before `now` (ms)."""
        self._store.submit("ZREMRANGEBYSCORE", schema.ENROLMENT_TOKENS, "-inf", now - KEPT_MS)
        ids = [id for id in await self._ids() if tenant_of(id) == tenant]
        answers = await answers_or_errors([self.read(local_id(id)) for id in ids])
        found = []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                found.append(answer)
        return found

    async def full(self, tenant: str, share: int) -> bool:
        """Whether the tenant has as many tokens as its `share`, or all tenants as many as there may be."""
        ids = await self._ids()
        return len(ids) >= MOST or sum(tenant_of(id) == tenant for id in ids) >= share

    async def _ids(self) -> list[str]:
        """The ids of all tokens, qualified by their tenants."""
        return [text(id) for id in items(await self._store.submit("ZRANGE", schema.ENROLMENT_TOKENS, 0, MOST))]

    def belongs(self, id: str, tenant: str) -> Answer[bool]:
        """Whether there is a token with this id, also one that is being revoked, and it belongs to the tenant."""
        reply = self._store.submit("ZSCORE", schema.ENROLMENT_TOKENS, qualified(tenant, id))
        return Answer(reply, lambda reply: reply is not None)

    def read(self, id: str) -> Answer[StoredEnrolment | None]:
        """The token and how many agents it has enrolled; None if there is none with this id."""
        key = schema.enrolment_key(id)
        script = self._store.run(lua.READ_ENROLMENT, (key,), (), priority=Priority.CONTROL)
        return Answer(script, _parse)

    def use(self, id: str, agent: str, thumbprint: str, uses: int, rate: int) -> Answer[TakenUse]:
        """Count the enrolment of `agent` with a key, of which the token allows `uses`, and `rate` in a minute unless
        that is 0."""
        reply = self._store.run(lua.TAKE_ENROLMENT, (schema.enrolment_key(id),), (agent, thumbprint, uses, rate))
        return Answer(reply, _parse_use)

    async def end(self, id: str) -> list[tuple[str, str]] | None:
        """Let a token enrol nobody any more, and return the agents and thumbprints that it has enrolled; None if there
        is none with this id. They stay stored until `remove`, so whoever was interrupted before that can begin
        again."""
        key = schema.enrolment_key(id)
        ended = self._store.submit("HDEL", key, "token")
        fields = [text(field) for field in items(await self._store.submit("HKEYS", key))]
        enrolled = [field.removeprefix("agent:").partition(" ") for field in fields if field.startswith("agent:")]
        if not integer(await ended) and not enrolled:
            return None
        return [(agent, thumbprint) for agent, _, thumbprint in enrolled]

    def remove(self, id: str, tenant: str) -> Answer[bool]:
        """Remove a token of a tenant. The answer is False if there was none with this id."""
        removed = self._store.submit("DEL", schema.enrolment_key(id))
        self._store.submit("ZREM", schema.ENROLMENT_TOKENS, qualified(tenant, id))
        return Answer(removed, lambda reply: integer(reply) == 1)


def _parse_use(reply: Reply) -> TakenUse:
    code, *wait = items(reply)
    return TakenUse(integer(code) == 1, integer(wait[0]) if wait else 0)


def _parse(reply: Reply) -> StoredEnrolment | None:
    token, used = items(reply)
    return None if token is None else StoredEnrolment(octets(token), integer(used))
