"""Who calls the platform API, as the guard of the API has found out. It is pure."""

from __future__ import annotations

from dataclasses import dataclass

SHARED_TOKEN = "shared-token"
"""The identity of everybody who presents the shared platform token."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One caller. Every token has one such object, which is compared by identity.

    `identity` is the name in records, logs and messages; for a service token it is `token:NAME`. `roles` are the roles
    that bindings may give to this subject, None for all: a service token may be limited to some. An `administrator` may
    do everything, and needs no role.
    """

    identity: str
    token_name: str = ""
    token_id: str = ""
    roles: frozenset[str] | None = None
    administrator: bool = False

    @property
    def issuer(self) -> str:
        """What kind of credential it presents: the audit log names it."""
        return "service-token" if self.token_id else SHARED_TOKEN


ADMINISTRATOR = Subject(SHARED_TOKEN, administrator=True)
"""Whoever presents the shared platform token."""
