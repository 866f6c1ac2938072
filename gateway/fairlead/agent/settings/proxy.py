"""Chooses the proxy of an agent: the one that is configured, or the one in the environment, read as curl reads it.

Called by the command line. HTTPS_PROXY applies only to wss://. A link without TLS goes through a proxy only if the
configuration names one, because most proxies refuse CONNECT to ports other than those of TLS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from fairlead.agent.settings.table import DIRECT
from fairlead.carrier.proxy_tunnel import parse_proxy
from fairlead.errors import ConfigError


def choose_proxy(url: str, configured: str | None, env: Mapping[str, str]) -> str | None:
    """The proxy's address, None to connect directly. Raises ConfigError for a malformed one in `env`."""
    if configured is not None:
        return None if configured == DIRECT else configured
    parts = urlsplit(url)
    found = _from(env, "HTTPS_PROXY") if parts.scheme == "wss" else ""
    if not found or _is_exempt(parts.hostname or "", parts.port or 443, _from(env, "NO_PROXY")):
        return None
    address = found if "://" in found else f"http://{found}"
    try:
        parse_proxy(address)
    except ValueError as e:
        raise ConfigError(f'environment HTTPS_PROXY: {e}; or set proxy = "direct" to connect without it') from e
    return address


def _from(env: Mapping[str, str], name: str) -> str:
    return env.get(name.lower()) or env.get(name) or ""


def _is_exempt(host: str, port: int, exceptions: str) -> bool:
    """Whether the host is this machine or is listed: by name, parent domain, address, network, `host:port` or `*`."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for item in exceptions.replace(",", " ").lower().split():
        name, colon, wanted = item.rpartition(":")
        if not colon or not wanted.isdecimal() or ":" in name:  # an IPv6 address has colons of its own
            name, wanted = item, str(port)
        if int(wanted) == port and (name == "*" or _matches(host, address, name)):
            return True
    return False


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, item: str) -> bool:
    if address is not None:
        try:
            return address in ipaddress.ip_network(item.strip("[]"), strict=False)
        except ValueError:
            return False
    name = item.removeprefix("*").lstrip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
