"""Whether a host is this machine. Used by settings and by whoever connects to an address."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` can certainly be reached only from this machine. Of names, only localhost is certain."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
