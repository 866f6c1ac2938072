"""When to try again: full jitter with an exponential cap, and slots that override it.

The agent's reconnect loop asks it; the gateway sends the policy in `welcome`. Full jitter (a uniform draw from
zero to the current ceiling) spreads a fleet best after an outage (Brooker, "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015). The first retries are quick, because a node that is gone is answered for by an ingress
with some 502s while other nodes are ready; only what goes on failing is worth waiting for. An agent trusts no
gateway with its pace: what `welcome`, `bye` and `Retry-After` ask for is bounded here. Pure: the random number in
[0, 1) is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

QUICK = 4
"""Retries after the first that are drawn from `base`, before the ceiling begins to double. An ingress needs up to 10 s
to forget a killed node of four and answers one attempt in four with an error meanwhile: five retries, 2.5 s in the
mean, all fail for one agent in a thousand."""
LONGEST_MS = 600_000
"""No pause of an agent is longer, whoever asks for it: ten minutes are enough for any overload, and a fleet that a
faulty proxy or gateway sent to sleep for a day could be woken only host by host."""
NAMED_LEAST_MS = 1_000
"""A pause of this length or more that a gateway names is taken as it is named: at most one attempt a second."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """All in milliseconds. `first` is the ceiling of the first retry, so that even it is spread over a fleet."""

    first: int = 1_000
    base: int = 1_000
    cap: int = 60_000

    def delay(self, attempt: int, draw: float) -> float:
        """Milliseconds to wait before retry number `attempt` (0 is the first), for a `draw` in [0, 1)."""
        # 2**16 × base exceeds any sane cap; the bound keeps the shift small for a link down for days.
        doublings = min(max(attempt - QUICK, 0), 16)
        ceiling = self.first if attempt <= 0 else min(self.cap, self.base << doublings)
        return draw * ceiling

    def slow(self, draw: float) -> float:
        """Milliseconds to wait when a person has to mend something first: the later half of the longest ceiling."""
        return self.cap * (0.5 + draw / 2)

    def bounded(self) -> RetryPolicy:
        """The same, with no ceiling above LONGEST_MS."""
        return RetryPolicy(min(self.first, LONGEST_MS), min(self.base, LONGEST_MS), min(self.cap, LONGEST_MS))


def pause(asked: float, attempt: int, draw: float) -> float:
    """Milliseconds that an agent really waits when it is `asked` to wait so long before retry number `attempt`.

    Below NAMED_LEAST_MS it may be asked for QUICK + 1 attempts in a row; from then on each pause is at least what the
    default policy draws, which doubles. Above LONGEST_MS it is spread over the later half of that.
    """
    if asked > LONGEST_MS:
        return LONGEST_MS * (0.5 + draw / 2)
    if asked >= NAMED_LEAST_MS or attempt <= QUICK:
        return asked
    return max(asked, RetryPolicy().delay(attempt, draw))


HANDED_OUT_MS = 30_000
"""The longest pause that this gateway hands out, in whatever form: the ceilings of `welcome.retry`, `bye.retry`, and
Retry-After with what an agent adds to it. It is shorter than the time for which an agent without a link counts as away,
so that none is called offline because it does what the gateway has told it."""
RETRY_AFTER_MOST = 20
"""Seconds in a Retry-After: an agent spreads them by up to half as much again."""
STABLE_MS = 60_000
"""A link that lived this long resets the attempt counter: shorter ones would hammer a gateway that drops them."""


def first_ceiling(links: int, accept_rate: float) -> int:
    """The `first` to send to agents (ms): the time this node needs to take all its links again, from 1 s on and no more
    than HANDED_OUT_MS. A node that needs longer refuses the rest of them once more."""
    return int(min(HANDED_OUT_MS, max(1_000.0, links / max(accept_rate, 1e-9) * 1000)))
