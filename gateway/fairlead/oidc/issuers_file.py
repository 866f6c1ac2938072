"""Reads the file of issuers: TOML with one table for each issuer whose JWTs callers of the API may present.

    [issuers.company]
    url = "https://login.example.com"
    audience = "fairlead"
    user_claim = "email"        # `sub` by default
    groups_claim = "groups"     # no groups by default
    algorithms = ["RS256"]      # all of ALGORITHMS by default
    ca = "/etc/fairlead/company-ca.pem"
    refused_keys = ["2026-10"]

`TablesReader` says what holds for every such file. It does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar, cast
from urllib.parse import urlsplit

from fairlead.configuration.loopback import is_loopback
from fairlead.configuration.tables_reader import TablesReader

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""The signatures that can be accepted. All are asymmetric: with HS256 an issuer's public key would be the secret."""
COMMON: Final = ("url", "audience", "algorithms", "ca", "refused_keys", "token_file")
"""The members that issuers of users and of agents have."""
_MEMBERS = (*COMMON, "user_claim", "groups_claim")
_CLAIM = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """`refused_keys` are ids of keys that are not accepted although the issuer may still publish them."""

    name: str
    url: str
    audience: str
    user_claim: str = "sub"
    groups_claim: str = ""
    algorithms: tuple[str, ...] = ALGORITHMS
    ca: Path | None = None
    refused_keys: frozenset[str] = frozenset()
    token_file: Path | None = None
    """A token for the issuer's own endpoints, which Kubernetes does not open to everybody."""
    advice: ClassVar[str] = "log in again (`fairlead login`)"
    """What whoever presents a JWT that is refused may do."""


I = TypeVar("I", bound=TrustedIssuer)  # noqa: E741  # the kind of issuer


def parse_issuers(raw: bytes, source: str) -> tuple[TrustedIssuer, ...]:
    """The issuers of a file; `source` is its name in errors. Raises ConfigError."""
    return read_issuers(raw, IssuersReader(source))


def read_issuers(raw: bytes, reader: IssuersReader[I]) -> tuple[I, ...]:
    """Raises ConfigError with all errors."""
    issuers = reader.issuers(reader.tables(raw))
    reader.finish()
    return issuers


class IssuersReader(TablesReader, Generic[I]):
    """Reads issuers of users. `agent_issuers_file` has one for those of agents."""

    kind = "issuers"
    example = "company"
    members: ClassVar[tuple[str, ...]] = _MEMBERS

    def issuers(self, tables: dict[str, dict[str, Any]]) -> tuple[I, ...]:
        found = [self._issuer(name, table) for name, table in tables.items()]
        urls = [one.url for one in found]
        for one in found:
            if urls.count(one.url) > 1:
                self._fault(f"issuers.{one.name}.url", f"is {one.url!r}, as in another table", "each issuer once")
        return tuple(found)

    def _made(self, name: str, table: dict[str, Any], where: str, common: dict[str, Any]) -> I:
        """The issuer of a table. `common` are the members that both kinds have."""
        user, groups = self._text(table, "user_claim", where, "sub"), self._text(table, "groups_claim", where, "")
        for member, claim in (("user_claim", user), ("groups_claim", groups)):
            if _CLAIM.fullmatch(claim) is None and member in table:
                self._fault(f"{where}.{member}", f"is {claim[:80]!r}", "the name of a claim, such as email")
        return cast(I, TrustedIssuer(user_claim=user, groups_claim=groups, **common))

    def _issuer(self, name: str, table: dict[str, Any]) -> I:
        where = self._where(name)
        url = self._text(table, "url", where, "")
        if problem := _url_problem(url):
            self._fault(f"{where}.url", problem, "https://HOST, as the issuer calls itself in its JWTs")
        audience = self._text(table, "audience", where, "")
        if not audience:
            self._fault(f"{where}.audience", "is missing", "the audience of the JWTs, usually a client id")
        algorithms = self._texts(table, "algorithms", where, ALGORITHMS)
        for one in algorithms:
            if one not in ALGORITHMS:
                self._fault(f"{where}.algorithms", f"contains {one[:80]!r}", ", ".join(ALGORITHMS))
        if not algorithms:
            self._fault(f"{where}.algorithms", "is empty", f"some of {', '.join(ALGORITHMS)} (or remove it)")
        ca, token = self._text(table, "ca", where, ""), self._text(table, "token_file", where, "")
        refused = frozenset(self._texts(table, "refused_keys", where, ()))
        common = {
            "name": name, "url": url, "audience": audience, "algorithms": algorithms, "refused_keys": refused,
            "ca": Path(ca) if ca else None, "token_file": Path(token) if token else None,
        }  # fmt: skip
        return self._made(name, table, where, common)

    def _texts(self, table: dict[str, Any], member: str, where: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = table.get(member, default)
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value) and len(value) <= 1_000:
            return tuple(value)
        self._fault(f"{where}.{member}", "is not a list of texts", f'a list such as ["{member}"]')
        return default


def _url_problem(url: str) -> str:
    """What keeps a URL from being that of an issuer; "" if nothing does."""
    if not url:
        return "is missing"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return f"is {url[:80]!r}, which is no URL"
    if parts.scheme not in ("https", "http") or not host or parts.query or parts.fragment or parts.username:
        return f"is {url[:80]!r}"
    if parts.scheme == "http" and not is_loopback(host):
        return f"is {url[:80]!r}, over which anybody in between could send keys"
    return ""
