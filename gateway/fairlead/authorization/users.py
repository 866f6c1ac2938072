"""Users of the trusted issuers: reads the file of issuers, keeps their keys, and turns JWTs into subjects.

The node creates one and runs `run`. A JWT that was verified is remembered by its digest until it expires, or its key or
issuer is gone, so that a request costs a hash and not a signature. A file that has become invalid changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead.authorization.subject import Subject
from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError, FairleadError, Unauthorized
from fairlead.oidc.issuer_keys import IssuerKeys, KeysUnavailable
from fairlead.oidc.issuers_file import SIZE_LIMIT, TrustedIssuer, parse_issuers
from fairlead.oidc.jwt_verifier import LEEWAY, UnknownKey, claimed_issuer, looks_like_jwt, verify
from fairlead.oidc.user import OidcUser

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two looks at the file, each of which is one system call."""
REMEMBERED: Final = 2_048
"""The number of verified JWTs that are remembered, at some 1 KB each."""


class Users:
    """`clock` is Unix time in seconds."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._sources: dict[str, IssuerKeys] = {}
        """By the URL of the issuer."""
        self._verified: OrderedDict[bytes, Subject] = OrderedDict()
        self.reload_failures = 0

    @property
    def sources(self) -> list[IssuerKeys]:
        return list(self._sources.values())

    def load(self) -> None:
        """Read the file. Raises ConfigError if it cannot be used."""
        if self._path is not None:
            self._seen = file_signature(self._path)
            self._use(_read(self._path))

    def authenticate(self, text: bytes) -> Subject | None:
        """The subject of a JWT; None if the text has not the form of one. Raises Unauthorized, and KeysUnavailable
        while the keys of its issuer cannot be had; after UnknownKey and KeysUnavailable, `fetch_after` may help."""
        if not looks_like_jwt(text):
            return None
        digest = hashlib.sha256(text).digest()
        known = self._verified.get(digest)
        if known is not None:
            self.check(known)
            return known
        source = self._source(text)
        user = verify(text, source.issuer, source.usable_keys(), self._clock())
        subject = self._verified[digest] = subject_of(user)
        if len(self._verified) > REMEMBERED:
            self._verified.popitem(last=False)
        return subject

    async def fetch_after(self, error: FairleadError) -> bool:
        """Fetch the keys whose absence has caused `error`, unless that was done a moment ago; False if it has another
        cause."""
        if not isinstance(error, UnknownKey | KeysUnavailable):
            return False
        source = self._sources.get(error.issuer.url)
        if source is not None:
            await source.refresh(wanted=True)
        return source is not None

    def check(self, subject: Subject) -> None:
        """Raises what `authenticate` would raise now for the JWT of `subject`, if it has one."""
        user = subject.user
        if user is None:
            return
        source = self._sources.get(user.issuer_url)
        if source is None or source.issuer.name != user.issuer:
            raise Unauthorized(f"the issuer {user.issuer} is not trusted any more: log in at another one")
        if user.key_id in source.issuer.refused_keys:
            raise Unauthorized(f"the key {user.key_id!r} of the issuer {user.issuer} is refused: log in again")
        if user.key_id not in source.usable_keys():
            raise UnknownKey(source.issuer, user.key_id)
        if user.expires + LEEWAY <= self._clock():
            raise Unauthorized(f"the JWT of {subject.identity} has expired: log in again (`fairlead login`)")

    async def run(self) -> None:
        """Follow the file and the keys. Never returns."""
        fetches: set[asyncio.Task[None]] = set()
        try:
            while True:
                for source in self._sources.values():
                    if source.due:
                        fetch = asyncio.create_task(source.refresh())
                        fetches.add(fetch)
                        fetch.add_done_callback(fetches.discard)
                await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.0))
                await self._follow_file()
        finally:
            for source in self._sources.values():
                await source.aclose()

    async def _follow_file(self) -> None:
        if self._path is None or file_signature(self._path) == self._seen:
            return
        self._seen = file_signature(self._path)
        try:
            self._use(await asyncio.to_thread(_read, self._path))
        except ConfigError as e:
            self.reload_failures += 1
            logger.error("the file of issuers cannot be used, so the issuers stay as they were: %s", e.message)
        else:
            logger.info("read the file of issuers %s again: %d issuers", self._path, len(self._sources))

    def _use(self, issuers: tuple[TrustedIssuer, ...]) -> None:
        """An issuer whose table has not changed keeps its keys."""
        known = {source.issuer: source for source in self._sources.values()}
        self._sources = {issuer.url: known.get(issuer) or IssuerKeys(issuer) for issuer in issuers}
        self._verified.clear()

    def _source(self, text: bytes) -> IssuerKeys:
        claimed = claimed_issuer(text)
        source = self._sources.get(claimed)
        if source is None:
            names = ", ".join(one.issuer.url for one in self._sources.values())
            raise Unauthorized(
                f"the JWT is of the issuer {claimed[:200]!r}, which this gateway does not trust: expected "
                f"{names or 'the platform token or a service token, because it trusts no issuer'}",
                reason="issuer",
            )
        return source


def subject_of(user: OidcUser) -> Subject:
    return Subject(f"user:{user.qualified_name}", user=user)


def _read(path: Path) -> tuple[TrustedIssuer, ...]:
    return parse_issuers(read_regular_file(path, SIZE_LIMIT + 1), str(path))
