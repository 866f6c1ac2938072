"""Users of the trusted issuers: reads the file of issuers, keeps their keys, and turns JWTs into subjects.

The node creates one and runs `run`. A JWT that was verified is remembered by its digest until it expires, or its key or
issuer is gone, so that a request costs a hash and not a signature. A file that has become invalid changes nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from fairlead.authorization.subject import Subject
from fairlead.errors import Unauthorized
from fairlead.oidc.issuer_keys import IssuerKeys
from fairlead.oidc.issuer_registry import IssuerRegistry
from fairlead.oidc.issuers_file import parse_issuers
from fairlead.oidc.jwt_verifier import LEEWAY, UnknownIssuer, UnknownKey, claimed_issuer, looks_like_jwt, verify
from fairlead.oidc.user import OidcUser

REMEMBERED: Final = 2_048
"""The number of verified JWTs that are remembered, at some 1 KB each."""


class Users:
    """`clock` is Unix time in seconds."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._verified: OrderedDict[bytes, Subject] = OrderedDict()
        self.issuers = issuers = IssuerRegistry(path, parse_issuers, self._verified.clear)
        self.load, self.fetch_after, self.run = issuers.load, issuers.fetch_after, issuers.run

    @property
    def sources(self) -> list[IssuerKeys]:
        return self.issuers.sources

    @property
    def reload_failures(self) -> int:
        return self.issuers.reload_failures

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

    def check(self, subject: Subject) -> None:
        """Raises what `authenticate` would raise now for the JWT of `subject`, if it has one."""
        user = subject.user
        if user is None:
            return
        source = self._trusted(user)
        if user.key_id not in source.usable_keys():
            raise UnknownKey(source.issuer, user.key_id)
        if user.expires + LEEWAY <= self._clock():
            raise Unauthorized(f"the JWT of {subject.identity} has expired: log in again (`fairlead login`)")

    def absent(self, user: OidcUser, tenant: str) -> Subject | None:
        """The subject of a user who has begun or approved something and left; None if the issuer or the key of the JWT
        is not trusted any more. That the JWT has expired, or the issuer signs with another key by now, ends nothing."""
        try:
            self._trusted(user)
        except Unauthorized:
            return None
        return replace(subject_of(user), tenant=tenant)

    def _trusted(self, user: OidcUser) -> IssuerKeys:
        """The keys of the user's issuer. Raises Unauthorized if the issuer is not trusted any more, or refuses the
        key of the JWT."""
        source = self.issuers.find(user.issuer_url)
        if source is None or source.issuer.name != user.issuer:
            raise Unauthorized(f"the issuer {user.issuer} is not trusted any more: log in at another one")
        if user.key_id in source.issuer.refused_keys:
            raise Unauthorized(f"the key {user.key_id!r} of the issuer {user.issuer} is refused: log in again")
        return source

    def _source(self, text: bytes) -> IssuerKeys:
        claimed = claimed_issuer(text)
        source = self.issuers.find(claimed)
        if source is None:
            raise UnknownIssuer(claimed, (one.issuer.url for one in self.sources))
        return source


def subject_of(user: OidcUser) -> Subject:
    return Subject(f"user:{user.qualified_name}", user=user)
