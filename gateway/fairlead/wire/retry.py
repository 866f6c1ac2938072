"""The reconnect policy: exponential backoff with full jitter, and pauses named by the gateway that override it.

The agent's reconnect loop calls it, and the gateway sends the policy in `welcome`. Full jitter (a uniform draw between
zero and the current ceiling) spreads a fleet best after an outage (Brooker, "Exponential Backoff And Jitter", AWS
Architecture Blog, 2015). The first retries are quick because, after a node has died, the ingress answers some attempts
with 502 while other nodes are ready; only repeated failures justify a longer pause. An agent does not follow a
gateway's pauses without limits: this module bounds those that `welcome`, `bye` and `Retry-After` ask for. It is pure:
the random number in [0, 1) is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

QUICK = 4
"""The number of retries after the first whose pause is drawn from `base`, before the ceiling begins to double. An
ingress needs up to 10 s to remove one killed node of four, and answers one attempt in four with an error meanwhile: all
of five retries, which take 2.5 s on average, fail for one agent in a thousand."""
LONGEST_MS = 600_000
"""The longest pause of an agent, whoever asks for a longer one. Ten minutes are enough for any overload, and a fleet
that a faulty proxy or gateway told to pause for a day could only be reconnected host by host."""
NAMED_LEAST_MS = 1_000
"""A pause of at least this length that a gateway names is used unchanged: it allows at most one attempt a second."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy, in milliseconds. `first` is the ceiling of the first retry, which must be spread over the fleet
    too."""

    first: int = 1_000
    base: int = 1_000
    cap: int = 60_000

    def delay(self, attempt: int, draw: float) -> float:
        """Milliseconds to wait before retry number `attempt` (0 is the first), for a `draw` in [0, 1)."""
        # 2**16 × base exceeds any sensible cap; the bound keeps the shift small when a link is down for days.
        doublings = min(max(attempt - QUICK, 0), 16)
        ceiling = self.first if attempt <= 0 else min(self.cap, self.base << doublings)
        return draw * ceiling

    def slow(self, draw: float) -> float:
        """Milliseconds to wait if a person must repair something first: between half of `cap` and `cap`."""
        return self.cap * (0.5 + draw / 2)

    def bounded(self) -> RetryPolicy:
        """The same policy with no ceiling above LONGEST_MS."""
        return RetryPolicy(min(self.first, LONGEST_MS), min(self.base, LONGEST_MS), min(self.cap, LONGEST_MS))


def pause(named: float, attempt: int, draw: float) -> float:
    """Milliseconds that an agent waits before retry number `attempt` if the gateway names `named` milliseconds.

    A pause below NAMED_LEAST_MS is accepted for QUICK + 1 attempts in a row; after that, each pause is at least what
    the default policy draws, whose ceiling doubles. A pause above LONGEST_MS is replaced with a draw between half of
    LONGEST_MS and LONGEST_MS.
    """
    if named > LONGEST_MS:
        return LONGEST_MS * (0.5 + draw / 2)
    if named >= NAMED_LEAST_MS or attempt <= QUICK:
        return named
    return max(named, RetryPolicy().delay(attempt, draw))


HANDED_OUT_MS = 30_000
"""The longest pause that this gateway tells agents to make in any form: the ceilings of `welcome.retry`, `bye.retry`,
and Retry-After including what an agent adds to it. It is shorter than the time for which an agent without a link counts
as away, so that no agent is reported as offline because it follows the gateway's instructions."""
RETRY_AFTER_MOST = 20
"""The largest Retry-After in seconds. An agent adds up to half as much, to spread the attempts."""
STABLE_MS = 60_000
"""How long a link must exist to reset the attempt counter. If shorter links reset it, agents would overload a gateway
that drops them."""


def first_ceiling(links: int, accept_rate: float) -> int:
    """The `first` to send to agents (ms): the time that this node needs to accept all its links again at
    this rate, at least 1 s and
    at most HANDED_OUT_MS. A node that needs longer refuses the remaining agents once more."""
    return int(min(HANDED_OUT_MS, max(1_000.0, links / max(accept_rate, 1e-9) * 1000)))


def retry_after(most: float, draw: float) -> int:
    """The Retry-After of a refused link in whole seconds: a uniform draw from 1 to `most` + 1, and to
    RETRY_AFTER_MOST at most. It is never 0, which would mean at once."""
    return 1 + int(draw * (int(min(most, RETRY_AFTER_MOST - 1)) + 1))


def after_refusal(seconds: float, draw: float) -> float:
    """Milliseconds that an agent waits after a Retry-After of `seconds`: between 1 and 1.5 times as long, because
    agents that were given the same number of seconds must not come back together."""
    return seconds * 1000 * (1 + draw / 2)
