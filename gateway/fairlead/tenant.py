"""Tenants: several fleets on one gateway that never meet, and how the ids of their agents are kept apart.

Inside, the id of an agent is qualified by its tenant: `/TENANT/ID`. The default tenant, which a gateway with one fleet
has alone, has no name, and its ids stay as they are. Ids that come in are checked not to contain a slash, so nobody can
write a qualified one: it is made at the border, of what the credential of a caller or an agent says. Every key, list
and record that is made of the id is then the tenant's own. This module is pure.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT: Final = ""
DEFAULT_SHOWN: Final = "default"
"""How callers name the tenant without a name."""
TENANT: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
TENANT_RULE: Final = "1 to 32 characters of a-z 0-9 -, the first and the last a letter or digit"
_MARK: Final = "/"
_AFTER_MARK: Final = "0"
"""The character that follows `/`. What begins with `/` sorts before every id of the default tenant."""


def qualified(tenant: str, id: str) -> str:
    """The id by which the agent `id` of a tenant, or whatever else has a name there, is known inside."""
    return f"/{tenant}/{id}" if tenant else id


def tenant_of(agent: str) -> str:
    """The tenant of a qualified id."""
    return agent[1 : agent.index(_MARK, 1)] if agent.startswith(_MARK) else DEFAULT


def local_id(agent: str) -> str:
    """The id as the tenant knows it."""
    return agent[agent.index(_MARK, 1) + 1 :] if agent.startswith(_MARK) else agent


def without_tenant(text: str, tenant: str) -> str:
    """A text for people of this tenant, in which ids of its agents may be qualified."""
    return text.replace(f"/{tenant}/", "") if tenant else text


def bounds(tenant: str) -> tuple[str, str]:
    """Between which two ends, as ZRANGE takes them with BYLEX, the qualified ids of a tenant are."""
    return (f"[/{tenant}/", f"(/{tenant}{_AFTER_MARK}") if tenant else (f"[{_AFTER_MARK}", "+")


def parse_tenant(shown: str) -> str | None:
    """The tenant that callers name so; None if the text names none."""
    if shown == DEFAULT_SHOWN:
        return DEFAULT
    return shown if TENANT.match(shown) is not None else None


def shown_tenant(tenant: str) -> str:
    """How callers name the tenant."""
    return tenant or DEFAULT_SHOWN
