"""How many service tokens, and how many enrolment tokens, one tenant may have, so that none fills the room of others.

The handlers that create tokens ask it. It is pure.
"""

from __future__ import annotations

from typing import Final

TOKENS_LIMIT: Final = 1_000
"""Tokens of each kind of a fleet, which its tenants share evenly."""
LEAST: Final = 20
"""What each tenant may have, however many tenants there are."""
MOST: Final = 10_000
"""Tokens of each kind in Redis, also those of tenants that are not declared any more. With as many tenants as there may
be, their shares are 5,140."""


def token_share(tenants: int) -> int:
    """The tokens of each kind that one of so many tenants may have. The default tenant is one of them."""
    return max(LEAST, TOKENS_LIMIT // max(1, tenants))
