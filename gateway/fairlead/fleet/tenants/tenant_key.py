"""The keys in Redis that each tenant has for itself. It does no I/O."""

from __future__ import annotations


def tenant_key(key: str, tenant: str) -> str:
    """The key that holds for a tenant what `key` holds for the default one. Its hash tag is the tenant."""
    return f"{key}:{{{tenant}}}" if tenant else key
