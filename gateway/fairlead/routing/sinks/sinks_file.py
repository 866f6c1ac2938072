"""Reads the file of event sinks: TOML with one table for each HTTP endpoint to which events are delivered.

    [sinks.siem]
    url = "https://siem.example.com/fairlead"
    secrets = ["whsec_…"]       # the one to use, and the one before it while receivers still know that
    type = "disk.*"             # every type by default
    selector = "env=prod"       # every agent by default
    tenant = "acme"             # the default tenant by default
    timeout = 10                # seconds for one attempt
    retry_for = 86400           # seconds for which an event is tried
    allow = ["127.0.0.1/32"]    # addresses that are refused otherwise
    ca = "/etc/fairlead/siem-ca.pem"

Every error names the table and the member, what is expected and what to do, and never a secret. It does no I/O.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fairlead.errors import ConfigError, InvalidRequest
from fairlead.fleet.selector import Selector, parse
from fairlead.routing.sinks.address_guard import Network
from fairlead.tenant import TENANT, TENANT_RULE

SIZE_LIMIT: Final = 1 << 18
SINKS_LIMIT: Final = 32
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
NAME_RULE: Final = "1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"
SECRETS_LIMIT: Final = 3
SECRET_BYTES: Final = (24, 64)
"""The least and the most that Standard Webhooks allows."""
PREFIX: Final = "whsec_"
_MEMBERS: Final = ("url", "secrets", "type", "selector", "tenant", "timeout", "retry_for", "allow", "ca")


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    url: str = field(repr=False)
    """It may have a secret in its query."""
    secrets: tuple[bytes, ...] = field(repr=False)
    type: str = ""
    selector: Selector = Selector(())  # noqa: RUF009  # frozen
    selector_text: str = ""
    tenant: str = ""
    timeout: float = 10.0
    retry_for: float = 86_400.0
    allow: tuple[Network, ...] = ()
    ca: Path | None = None

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]


def parse_sinks(raw: bytes, source: str) -> tuple[Sink, ...]:
    """The sinks of a file; `source` is its name in errors. Raises ConfigError with all errors."""
    if len(raw) > SIZE_LIMIT:
        raise ConfigError(f"{source}: {len(raw)} bytes exceed the maximum of {SIZE_LIMIT}: expected a smaller file")
    try:
        parsed = tomllib.loads(raw.decode())
    except ValueError as e:  # not TOML, or not UTF-8; the error quotes no value
        raise ConfigError(f"{source}: not valid TOML ({e}): expected tables such as [sinks.siem]") from e
    reader = _Reader(source)
    sinks = reader.sinks(parsed)
    if reader.errors:
        raise ConfigError("\n".join(reader.errors[:20]))
    return sinks


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self.errors: list[str] = []

    def sinks(self, parsed: dict[str, Any]) -> tuple[Sink, ...]:
        for name in parsed.keys() - {"sinks"}:
            self._fault("the file", f"has the unknown member {name[:80]!r}", "tables such as [sinks.siem]")
        tables = parsed.get("sinks", {})
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
            self._fault("sinks", "is not a table of tables", "tables such as [sinks.siem]")
            return ()
        if len(tables) > SINKS_LIMIT:
            self._fault("sinks", f"has {len(tables)} members", f"at most {SINKS_LIMIT}")
        return tuple(self._sink(name, table) for name, table in tables.items())

    def _sink(self, name: str, table: dict[str, Any]) -> Sink:
        where = f"sinks.{name[:80]}"
        if not NAME.match(name):
            self._fault(where, "has an invalid name", NAME_RULE)
        for member in table.keys() - set(_MEMBERS):
            self._fault(where, f"has the unknown member {member[:80]!r}", ", ".join(_MEMBERS))
        url = self._text(table, "url", where)
        if problem := _url_problem(url):
            self._fault(f"{where}.url", problem, "https://HOST/PATH (http:// only to an address in `allow`)")
        tenant, ca, chosen = (self._text(table, member, where) for member in ("tenant", "ca", "selector"))
        if tenant and not TENANT.match(tenant):
            self._fault(f"{where}.tenant", "is no name of a tenant", TENANT_RULE)
        selector = Selector(())
        try:
            selector = parse(chosen)
        except InvalidRequest as e:
            self._fault(f"{where}.selector", "cannot be used", e.message)
        allow = self._networks(table, where)
        if url.startswith("http://") and not allow:
            self._fault(f"{where}.url", "is not encrypted", "https://, or the address of the receiver in `allow`")
        return Sink(
            name, url, self._secrets(table, where), self._text(table, "type", where), selector, chosen, tenant,
            self._number(table, "timeout", where, 10, (1, 30)),
            self._number(table, "retry_for", where, 86_400, (0, 7 * 86_400)), allow, Path(ca) if ca else None,
        )  # fmt: skip

    def _secrets(self, table: dict[str, Any], where: str) -> tuple[bytes, ...]:
        expected = f"1 to {SECRETS_LIMIT} texts such as `{PREFIX}…`, with 24 to 64 bytes in base64 behind {PREFIX}"
        given = table.get("secrets")
        if not isinstance(given, list) or not 1 <= len(given) <= SECRETS_LIMIT:
            self._fault(f"{where}.secrets", "is missing or no such list", expected)
            return ()
        found = []
        for one in given:
            secret = b""
            if isinstance(one, str) and one.startswith(PREFIX):
                try:
                    secret = base64.b64decode(one.removeprefix(PREFIX), validate=True)
                except (binascii.Error, ValueError):
                    pass  # the error would show the secret
            if not SECRET_BYTES[0] <= len(secret) <= SECRET_BYTES[1]:
                self._fault(f"{where}.secrets", "contains an invalid secret", expected)
            found.append(secret)
        return tuple(found)

    def _networks(self, table: dict[str, Any], where: str) -> tuple[Network, ...]:
        given = table.get("allow", [])
        try:
            if isinstance(given, list) and all(isinstance(one, str) for one in given):
                return tuple(ipaddress.ip_network(one, strict=False) for one in given)
        except ValueError:
            pass
        self._fault(f"{where}.allow", "is no list of networks", 'a list such as ["127.0.0.1/32"]')
        return ()

    def _number(
        self, table: dict[str, Any], member: str, where: str, default: float, bounds: tuple[float, float]
    ) -> float:
        value = table.get(member, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]:
            return float(value)
        self._fault(f"{where}.{member}", "is no such number", f"seconds from {bounds[0]:g} to {bounds[1]:g}")
        return default

    def _text(self, table: dict[str, Any], member: str, where: str) -> str:
        value = table.get(member, "")
        if isinstance(value, str) and value.isprintable() and len(value) <= 1_024:
            return value
        self._fault(f"{where}.{member}", "is not text of at most 1024 printable characters", "text in quotes")
        return ""

    def _fault(self, where: str, problem: str, expected: str) -> None:
        self.errors.append(f"{self._source}: {where} {problem}: expected {expected}")


def _url_problem(url: str) -> str:
    """What keeps a URL from being that of a sink; "" if nothing does. It is not repeated, for it may hold a secret."""
    if not url:
        return "is missing"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("https", "http") or not host or parts.fragment:
        return "is no URL of an HTTP endpoint"
    return "has a user name, which would be sent as a password" if parts.username is not None else ""
