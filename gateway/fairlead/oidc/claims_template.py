"""Text that is made of the claims of a JWT: `{/kubernetes.io/namespace}.{/kubernetes.io/pod/name}`.

What is in braces is a JSON Pointer (RFC 6901) to a claim, because names of claims have dots and slashes in them. It is
pure. The file of agents' issuers says with it what an agent's id and labels are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_POINTER: Final = re.compile(r"\{(/[^{}]*)\}")
_VALUE_LIMIT: Final = 256
"""Characters of a claim that becomes a part of an id or label."""


class MissingClaim(Exception):
    """The JWT has no usable claim at this pointer."""


def claim_at(claims: Mapping[str, Any], pointer: str) -> str | None:
    """The claim that a JSON Pointer names; None unless it is text, a number or a truth value."""
    found: Any = claims
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found) if isinstance(found, str | int) else None


class ClaimsTemplate:
    """Raises ValueError for a text with a brace that is not part of a pointer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _POINTER.split(text)
        """Text and pointers in turn."""
        if any("{" in part or "}" in part for part in self._parts[::2]):
            raise ValueError(f"{text[:200]!r} has a brace that begins no pointer: expected pointers such as {{/sub}}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClaimsTemplate) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def pointers(self) -> list[str]:
        return self._parts[1::2]

    def fill(self, claims: Mapping[str, Any]) -> str:
        """Raises MissingClaim."""
        filled = list(self._parts)
        for at in range(1, len(filled), 2):
            value = claim_at(claims, filled[at])
            if not value or len(value) > _VALUE_LIMIT:
                raise MissingClaim(filled[at])
            filled[at] = value
        return "".join(filled)
