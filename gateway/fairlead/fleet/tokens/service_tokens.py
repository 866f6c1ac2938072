"""The service tokens in Redis: one hash with a field `token:ID` and a field `used:ID` for each, and their revision.

`authorization` reads them all when the revision has changed, and the API adds and removes them. The revision is random,
so that a server that has lost its data never shows one that a node has seen. Raises BusUnavailable if Redis does not
answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.fleet import lua, schema
from fairlead.fleet.tokens.tenant_share import MOST, TOKENS_LIMIT
from fairlead.store.answer import Answer
from fairlead.store.backlog import Priority
from fairlead.store.reply import Reply, integer, octets, table
from fairlead.store.store import Store
from fairlead.text import plain

logger = logging.getLogger(__name__)

TOKEN_BYTES = 300

LAST_TIME = 253_402_300_799_999
"""The last moment of the year 9999 in ms: no later one can be shown."""

_encode = msgspec.json.Encoder().encode
Time = Annotated[int, Meta(ge=0, le=LAST_TIME)]


class ServiceToken(msgspec.Struct, frozen=True):
    """A token as it is stored; `digest` is the SHA-256 of its secret. Times are Redis TIME in ms. `roles` limit it to
    some of those that bindings give to its name in its `tenant`; None for all of them. `person` is who has
    created it, directly or by another token: a user, or else the first of these tokens; "" if an administrator has. Who
    has made a token is no second person beside it."""

    id: str
    name: str
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: Time
    expires: Time
    created_by: str
    roles: tuple[str, ...] | None = None
    person: str = ""
    tenant: str = ""


_decode = msgspec.json.Decoder(ServiceToken).decode
_decode_time = msgspec.json.Decoder(Time).decode


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """All tokens by id, and when each was last used (ms)."""

    revision: str
    tokens: Mapping[str, ServiceToken]
    used: Mapping[str, int]


class ServiceTokens:
    def __init__(self, store: Store) -> None:
        self._store = store

    def revision(self) -> Answer[str]:
        """What changes whenever a token is added or removed; "" if there never was one."""
        reply = self._store.submit("HGET", schema.SERVICE_TOKENS, "revision", priority=Priority.CONTROL)
        return Answer(reply, lambda reply: "" if reply is None else octets(reply).decode(errors="replace"))

    def read(self) -> Answer[StoredTokens]:
        expected = TOKENS_LIMIT * TOKEN_BYTES
        reply = self._store.submit("HGETALL", schema.SERVICE_TOKENS, priority=Priority.BACKGROUND, expected=expected)
        return Answer(reply, _parse)

    def add(self, token: ServiceToken, revision: str, now: int, share: int) -> Answer[bool]:
        """Add a token. The answer is False if its tenant has `share` that have not expired a week before `now`."""
        args = token.id, _encode(token), revision, share, now, token.tenant, MOST
        return Answer(
            self._store.run(lua.ADD_SERVICE_TOKEN, (schema.SERVICE_TOKENS,), args), lambda reply: integer(reply) == 1
        )

    def find(self, id: str) -> Answer[ServiceToken | None]:
        """The token with this id; None if there is none."""
        reply = self._store.submit("HGET", schema.SERVICE_TOKENS, f"token:{id}")
        return Answer(reply, lambda reply: None if reply is None else _decode(octets(reply)))

    def remove(self, id: str, revision: str) -> Answer[bool]:
        """Remove a token. The answer is False if there was none with this id."""
        reply = self._store.run(lua.REMOVE_SERVICE_TOKEN, (schema.SERVICE_TOKENS,), (id, revision))
        return Answer(reply, lambda reply: integer(reply) == 1)

    def note_use(self, id: str, now: int) -> asyncio.Future[Reply]:
        """Store when a token was last used. A token that was removed meanwhile leaves a field, which `add` removes."""
        return self._store.submit("HSET", schema.SERVICE_TOKENS, f"used:{id}", now, priority=Priority.BACKGROUND)


def _parse(reply: Reply) -> StoredTokens:
    tokens: dict[str, ServiceToken] = {}
    used: dict[str, int] = {}
    revision = ""
    for field, value in table(reply).items():
        kind, _, id = field.decode(errors="replace").partition(":")
        try:
            if kind == "revision":
                revision = value.decode(errors="replace")
            elif kind == "used":
                used[id] = _decode_time(value)
            else:
                token = _decode(value)
                if token.id != id:
                    raise msgspec.ValidationError(f"it has the id {token.id[:64]!r}")
                tokens[id] = token
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            logger.warning("the service token %s in Redis is not valid, so it is refused: %s", plain(id[:64]), e)
    return StoredTokens(revision, tokens, used)
