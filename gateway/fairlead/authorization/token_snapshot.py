"""All service tokens as this node last read them, so that no request to the API asks Redis for its token.

The node creates one and runs `run`, which asks every second whether the tokens have changed. A node that cannot read
them for `STALE` seconds refuses them all: otherwise a node without Redis would go on accepting a revoked one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from fairlead.authorization.service_token import has_secret, split_token, subject_of
from fairlead.authorization.subject import Subject
from fairlead.errors import BusUnavailable, FairleadError, Unauthorized
from fairlead.fleet.tokens.service_tokens import ServiceToken, ServiceTokens
from fairlead.repeated_lines import RepeatedLines

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two questions for a change: a revoked token is refused everywhere after this time and one reply."""
STALE: Final = 4.0
"""Seconds after which an unread change may exist. With the time of one request it stays below the 5 s within which a
revocation holds everywhere."""
NOTE_USE_MS: Final = 60_000
"""The last use of a token is stored at most once in this time by each node."""


class TokenSnapshot:
    """`now` is Redis TIME in ms. `on_change` is called after a token was added or removed."""

    def __init__(self, store: ServiceTokens, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._tokens: Mapping[str, ServiceToken] = {}
        self._subjects: dict[str, Subject] = {}
        self._revision: str | None = None
        self._read_at = float("-inf")
        self._errors = RepeatedLines()
        self._noted: dict[str, int] = {}
        """When the last use of a token was last stored."""
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._tokens)

    def authenticate(self, text: bytes) -> Subject | None:
        """The subject of a token; None if the text has not the form of one. Raises Unauthorized for one that is unknown
        or has expired, and BusUnavailable while the tokens cannot be read."""
        parts = split_token(text)
        if parts is None:
            return None
        self._check_fresh()
        token = self._tokens.get(parts[0])
        if token is None or not has_secret(token, parts[1]):
            raise Unauthorized("wrong credential: no such service token, or it was revoked (create a new one)")
        self._check_expiry(token)
        self._note_use(token.id)
        return self._subjects[token.id]

    def find(self, id: str) -> Subject | None:
        """The subject of the token with this id; None if there is none, or it has expired. Raises BusUnavailable while
        the tokens cannot be read."""
        self._check_fresh()
        token = self._tokens.get(id)
        return None if token is None or token.expires <= self._now() else self._subjects[id]

    def expiry(self, subject: Subject) -> int:
        """When the token of `subject` expires (ms); 0 if it has none."""
        token = self._tokens.get(subject.token_id)
        return 0 if token is None else token.expires

    def check(self, subject: Subject) -> None:
        """Raises what `authenticate` would raise now for the token of `subject`, if it has one."""
        if not subject.token_id:
            return
        self._check_fresh()
        token = self._tokens.get(subject.token_id)
        if token is None:
            raise Unauthorized("the service token of this request was revoked")
        self._check_expiry(token)

    async def run(self) -> None:
        """Follow the changes. Never returns."""
        while True:
            try:
                await self.refresh()
            except BusUnavailable as e:
                logger.debug("the service tokens cannot be read: %s", e.message)
            except FairleadError as e:
                # Somebody else wrote to the key: the tokens are refused until it is removed, and the loop has to go on.
                level = self._errors.level(e.message, logging.ERROR, time.monotonic())
                logger.log(level, "the service tokens in Redis cannot be read, so all are refused: %s", e.message)
            else:
                self._errors.clear()
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))

    async def refresh(self) -> None:
        """Read the tokens if they have changed. Raises BusUnavailable."""
        asked = time.monotonic()  # a change after the question may be missing in the answer
        revision = await self._store.revision()
        if revision != self._revision:
            stored = await self._store.read()
            self._subjects = {id: subject_of(token) for id, token in stored.tokens.items()}
            self._noted = {id: at for id, at in self._noted.items() if id in stored.tokens}
            self._tokens, self._revision = stored.tokens, stored.revision
            self.on_change()
        self._read_at = asked

    def _check_fresh(self) -> None:
        if (age := time.monotonic() - self._read_at) > STALE:
            since = "yet" if age == float("inf") else f"for {age:.0f} s"
            raise BusUnavailable(f"service tokens are refused, because Redis has not answered {since}: try again later")

    def _check_expiry(self, token: ServiceToken) -> None:
        if token.expires <= self._now():
            raise Unauthorized(f"the service token {token.name} ({token.id}) has expired: create a new one")

    def _note_use(self, id: str) -> None:
        now = self._now()
        if now - self._noted.get(id, 0) >= NOTE_USE_MS:
            self._noted[id] = now
            self._store.note_use(id, now)
