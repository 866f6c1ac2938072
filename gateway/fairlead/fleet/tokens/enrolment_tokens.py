"""The enrolment tokens in Redis, a hash for each: the token, a field for each agent and key that it has enrolled, and
the bucket of its rate.

What a token means is known to `identity`; here it is octets. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairlead.fleet import lua, schema
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.store.backlog import Priority
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, octets, text

TOKENS_LIMIT: Final = 1_000
"""Tokens of a fleet."""
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
    def __init__(self, store: Pipeliner) -> None:
        self._store = store

    def add(self, id: str, token: bytes, expires: int) -> asyncio.Future[Reply]:
        """Store a token with a new id until a week after `expires` (ms)."""
        key = schema.enrolment_key(id)
        # First in the index: a token that is not there could not be revoked.
        self._store.submit("ZADD", schema.ENROLMENT_TOKENS, expires, id)
        self._store.submit("HSET", key, "token", token)
        return self._store.submit("PEXPIREAT", key, expires + KEPT_MS)

    async def all(self, now: int) -> list[StoredEnrolment]:
        """All tokens, except those that expired more than a week before `now` (ms)."""
        self._store.submit("ZREMRANGEBYSCORE", schema.ENROLMENT_TOKENS, "-inf", now - KEPT_MS)
        ids = [text(id) for id in items(await self._store.submit("ZRANGE", schema.ENROLMENT_TOKENS, 0, TOKENS_LIMIT))]
        answers = await answers_or_errors([self.read(id) for id in ids])
        found = []
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                found.append(answer)
        return found

    async def full(self) -> bool:
        """Whether there are as many tokens as there may be."""
        return integer(await self._store.submit("ZCARD", schema.ENROLMENT_TOKENS)) >= TOKENS_LIMIT

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

    def remove(self, id: str) -> Answer[bool]:
        """Remove a token. The answer is False if there was none with this id."""
        removed = self._store.submit("DEL", schema.enrolment_key(id))
        self._store.submit("ZREM", schema.ENROLMENT_TOKENS, id)
        return Answer(removed, lambda reply: integer(reply) == 1)


def _parse_use(reply: Reply) -> TakenUse:
    code, *wait = items(reply)
    return TakenUse(integer(code) == 1, integer(wait[0]) if wait else 0)


def _parse(reply: Reply) -> StoredEnrolment | None:
    token, used = items(reply)
    return None if token is None else StoredEnrolment(octets(token), integer(used))
