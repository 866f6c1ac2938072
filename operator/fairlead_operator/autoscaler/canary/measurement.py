"""Compares what a canary has served with what the other pods have served meanwhile. Pure.

Every measurement has the same form: of so many links or commands, so many went wrong. The share of the other pods says
how many would have gone wrong on the canary if it were like them. Both are counted over the same time, so that what
happens to the whole fleet (a network, Redis, a platform that sends wrong commands) speaks against nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.api.gateway_spec import Canary

TOLERANCE = 2.0
"""How many times the share of the other pods a canary may have: pods of one revision differ by where their agents
are."""
DEVIATIONS = 3.0
"""Standard deviations of a Poisson distribution that are chance: one of 700 comparisons lies beyond them."""
ALWAYS_ALLOWED = 3
"""What may go wrong on a canary although nothing goes wrong elsewhere: a laptop that is closed is a lost link."""
SLOW_SHARE = 0.95
"""A command is slow if the gateway added more time to it than to this share of the commands of the other pods, and more
than SLOW_LEAST."""
SLOW_LEAST = 0.05
"""Seconds: nobody notices less."""


@dataclass(frozen=True, slots=True)
class Served:
    """What some pods have served within a time."""

    traffic: Traffic = field(default_factory=Traffic)
    link_seconds: float = 0.0
    """For how long each link was observed, added up."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """`count` of `total` went wrong on the canary; the share of the other pods explains up to `limit`."""

    name: str
    """LinksRejected, LinksLost, CommandsFailed or CommandsSlow."""
    subject: str
    """What was counted, in words."""
    count: int
    total: int
    expected: float
    """How many would have gone wrong by the share of the other pods."""
    judged: bool
    """Whether enough was seen to judge by."""

    @property
    def limit(self) -> int:
        tolerated = TOLERANCE * self.expected
        return math.floor(ALWAYS_ALLOWED + tolerated + DEVIATIONS * math.sqrt(tolerated))

    @property
    def failed(self) -> bool:
        return self.judged and self.count > self.limit

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.total} {self.subject} on the canary; the share of the other pods would be "
            f"{self.expected:.1f}, and {self.limit} are allowed"
        )


def compare(canary: Served, others: Served, spec: Canary) -> tuple[Measurement, ...]:
    """All measurements, in the order in which they are judged."""
    new, old = canary.traffic, others.traffic
    links, commands = new.accepted >= spec.min_links, min(new.ended, old.ended) >= spec.min_commands
    slow = max(old.overhead(SLOW_SHARE), SLOW_LEAST)
    timed = min(new.timed, old.timed) >= spec.min_commands
    return (
        Measurement(
            "LinksRejected", "connections were rejected", new.rejected, new.attempts,
            _expected(old.rejected, old.attempts, new.attempts), new.attempts >= spec.min_links,
        ),
        Measurement(
            "LinksLost", "links were lost", new.lost, new.accepted,
            _expected(old.lost, others.link_seconds, canary.link_seconds), links and others.link_seconds > 0,
        ),
        Measurement(
            "CommandsFailed", "commands failed", new.failed, new.ended, _expected(old.failed, old.ended, new.ended),
            commands,
        ),
        Measurement(
            "CommandsSlow", f"commands took {slow * 1000:.0f} ms more than their agents did",
            new.slower_than(slow), new.timed, _expected(old.slower_than(slow), old.timed, new.timed), timed,
        ),
    )  # fmt: skip


def _expected(bad: int, of: float, on_canary: float) -> float:
    return bad / of * on_canary if of else 0.0
