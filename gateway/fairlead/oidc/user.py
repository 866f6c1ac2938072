"""A user of a trusted issuer, as a verified JWT describes one. It is pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OidcUser:
    """`issuer` is the name that the file of issuers gives to the issuer, and begins the names of users and groups in
    the file of roles: `company:anna`. `expires` is in whole seconds of Unix time."""

    issuer: str
    issuer_url: str
    name: str
    groups: frozenset[str]
    key_id: str
    expires: int

    @property
    def qualified_name(self) -> str:
        return f"{self.issuer}:{self.name}"

    @property
    def qualified_groups(self) -> frozenset[str]:
        return frozenset(f"{self.issuer}:{group}" for group in self.groups)
