"""When to try again: full jitter with an exponential cap, and slots that override it.

The agent's reconnect loop asks it; the gateway sends the policy in `welcome`. Full jitter (a uniform draw from
zero to the current ceiling) spreads a fleet best after an outage (Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015). Pure: the random number in [0, 1) is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """All in milliseconds. `first` is the ceiling of the first retry, so that even it is spread over a fleet."""

    first: int = 1_000
    base: int = 1_000
    cap: int = 60_000

    def delay(self, attempt: int, draw: float) -> float:
        """Milliseconds to wait before retry number `attempt` (0 is the first), for a `draw` in [0, 1)."""
        # 2**16 × base exceeds any sane cap; the bound keeps the shift small for a link down for days.
        ceiling = self.first if attempt <= 0 else min(self.cap, self.base << min(attempt, 16))
        return draw * ceiling


STABLE_MS = 60_000
"""A link that lived this long resets the attempt counter: shorter ones would hammer a gateway that drops them."""


def first_ceiling(links: int, accept_rate: float) -> int:
    """The `first` to send to agents (ms): the time this node needs to take all its links again, within 1 s to 60 s."""
    return int(min(60.0, max(1.0, links / max(accept_rate, 1e-9))) * 1000)
