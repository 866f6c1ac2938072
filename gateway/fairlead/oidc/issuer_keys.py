"""The keys of one issuer: fetched at the start, again every few minutes, and when a JWT names an unknown key.

Several requests that miss the same key wait for one fetch, and no two fetches begin within MIN_INTERVAL, so that JWTs
with invented keys cost the issuer nothing. While the issuer is away its keys stay in use, for MAX_AGE at most: a key
that it has withdrawn must not be accepted for ever. `authorization.users` owns it and calls `refresh`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fairlead.configuration.watched_file import read_regular_file
from fairlead.errors import ConfigError, FairleadError, Unavailable
from fairlead.oidc.issuers_file import TrustedIssuer
from fairlead.oidc.key_set import KeySet, parse_key_set
from fairlead.oidc.provider import fetch_keys

logger = logging.getLogger(__name__)

REFRESH: Final = 300.0
"""Seconds between two fetches: a withdrawn key is refused after this time."""
RETRY: Final = 10.0
"""Seconds from a failed fetch to the next one."""
MIN_INTERVAL: Final = 5.0
"""Seconds between two fetches because of unknown keys."""
MAX_AGE: Final = 3_600.0
"""Seconds for which keys are used while the issuer cannot be reached."""

TOKEN_LIMIT: Final = 16 << 10


class KeysUnavailable(Unavailable):
    """There are no keys of the issuer that may be used now."""

    def __init__(self, issuer: TrustedIssuer, problem: str) -> None:
        super().__init__(
            f"JWTs of the issuer {issuer.name} are refused, because its keys cannot be fetched ({problem}): try again "
            "later"
        )
        self.issuer = issuer


class IssuerKeys:
    """`clock` counts seconds, and `fetch` gives the key set as the issuer publishes it."""

    def __init__(
        self,
        issuer: TrustedIssuer,
        fetch: Callable[[TrustedIssuer], Awaitable[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self._fetch = fetch or _fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = float("-inf")
        self._asked_at = float("-inf")
        self._next = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._problem = "they were not fetched yet"
        self.fetches = 0
        self.failures = 0

    def usable_keys(self) -> KeySet:
        """Raises KeysUnavailable while there are none, or only too old ones."""
        age = self._clock() - self._fetched_at
        if self._keys is None or age > MAX_AGE:
            raise KeysUnavailable(self.issuer, self._problem)
        return self._keys

    @property
    def due(self) -> bool:
        return self._fetching is None and self._clock() >= self._next

    async def refresh(self, wanted: bool = False) -> None:
        """Fetch the keys, or wait for the fetch that is under way. If it is only `wanted`, because of an unknown key,
        nothing happens within MIN_INTERVAL of the last one. Never raises: the keys stay as they were."""
        if self._fetching is None:
            if wanted and self._clock() - self._asked_at < MIN_INTERVAL:
                return
            self._asked_at = self._clock()
            self._fetching = asyncio.create_task(self._run())
        await asyncio.wait({self._fetching})

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _run(self) -> None:
        self.fetches += 1
        asked = self._clock()
        try:
            self._keys = parse_key_set(await self._fetch(self.issuer), f"the issuer {self.issuer.name}")
            self._fetched_at, self._next = asked, asked + REFRESH * random.uniform(0.8, 1.0)
            self._problem = ""
        except FairleadError as e:
            self.failures += 1
            self._next = self._clock() + RETRY * random.uniform(0.8, 1.2)
            if e.message != self._problem:
                logger.warning("the keys of the issuer %s cannot be fetched: %s", self.issuer.name, e.message)
            self._problem = e.message
        finally:
            self._fetching = None


async def _fetch(issuer: TrustedIssuer) -> bytes:
    token = "" if issuer.token_file is None else await asyncio.to_thread(_read_token, issuer.token_file)
    return await fetch_keys(issuer.url, issuer.ca, token)


def _read_token(file: Path) -> str:
    """The token that is in the file now: Kubernetes replaces it every hour. Raises Unavailable."""
    try:
        return read_regular_file(file, TOKEN_LIMIT).decode("ascii").strip()
    except (ConfigError, UnicodeDecodeError) as e:
        raise Unavailable(f"the token in {file} cannot be read: {e}") from e
