"""Who calls the platform API, as the guard of the API has found out. It is pure."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.oidc.user import OidcUser

SHARED_TOKEN = "shared-token"
"""The identity of everybody who presents the shared platform token."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One caller. Every token has one such object, which is compared by identity.

    `identity` is the name in records, logs and messages; for a service token it is `token:NAME`, and for a
    user of a trusted issuer `user:ISSUER:NAME`. `roles` are the roles that bindings may give to this subject, None for
    all: a service token may be limited to some. An `administrator` may do everything, and needs no role. Everything
    that a subject does, it does in one `tenant`: an administrator and a user of several choose it with each request.
    """

    identity: str
    token_name: str = ""
    token_id: str = ""
    roles: frozenset[str] | None = None
    administrator: bool = False
    owner: str = ""
    """Who has created this service token, directly or by another token: a user, or else the first of these tokens; ""
    if an administrator has created it."""
    user: OidcUser | None = None
    tenant: str = ""

    @property
    def person(self) -> str:
        """The identity of the user behind this subject, or of the token if no user is known; "" for an
        administrator."""
        return self.owner or ("" if self.administrator else self.identity)

    @property
    def issuer(self) -> str:
        """The URL of a user's issuer, or what kind of credential it presents: the audit log names it."""
        if self.user is not None:
            return self.user.issuer_url
        return "service-token" if self.token_id else SHARED_TOKEN


ADMINISTRATOR = Subject(SHARED_TOKEN, administrator=True)
"""Whoever presents the shared platform token."""
