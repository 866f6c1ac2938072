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

`TablesReader` says what holds for every such file. No error shows a secret. It does no I/O.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fairlead.configuration.tables_reader import TablesReader
from fairlead.errors import InvalidRequest
from fairlead.fleet.selector import Selector, parse
from fairlead.routing.sinks.address_guard import Network
from fairlead.tenant import TENANT, TENANT_RULE

SECRETS_LIMIT: Final = 3
SECRET_BYTES: Final = (24, 64)
"""The least and the most that Standard Webhooks allows."""
PREFIX: Final = "whsec_"


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
    reader = _SinksReader(source)
    sinks = tuple(reader.sink(name, table) for name, table in reader.tables(raw).items())
    reader.finish()
    return sinks


class _SinksReader(TablesReader):
    kind = "sinks"
    example = "siem"
    members = ("url", "secrets", "type", "selector", "tenant", "timeout", "retry_for", "allow", "ca")

    def sink(self, name: str, table: dict[str, Any]) -> Sink:
        where = self._where(name)
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
