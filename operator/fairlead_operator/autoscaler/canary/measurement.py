"""Compares what a canary has served with what the other pods have served meanwhile. Pure.

Every measurement has the same form: the number of links or commands that failed, out of a total. The share of the other
pods says how many would have failed on the canary if it were like them. Both are counted over the same time, so that
what affects the whole fleet (a network, Redis, a platform that sends wrong commands) does not count against the canary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fairlead.fleet.reports.traffic import Traffic
from fairlead_operator.api.gateway_spec import Canary

TOLERANCE = 2.0
"""The factor by which a canary may exceed the share of the other pods: even pods of one revision differ, because their
agents are in different places."""
DEVIATIONS = 3.0
"""Standard deviations of a Poisson distribution that count as chance: one of 700 comparisons exceeds them by chance."""
ALWAYS_ALLOWED = 3
"""How many failures a canary may have even if there are none elsewhere: a laptop that is closed is a lost link."""
SLOW_SHARE = 0.95
"""A command is slow if the gateway added more time to it than to this share of the other pods' commands, and more than
SLOW_LEAST."""
SLOW_LEAST = 0.05
"""Seconds that the gateway may add to any command: a shorter delay is not noticed."""


@dataclass(frozen=True, slots=True)
class Served:
    """What some pods have served within a time."""

    traffic: Traffic = field(default_factory=Traffic)
    link_seconds: float = 0.0
    """The sum of the times for which each link was observed, in seconds."""


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
    """How many would have failed, given the share of the other pods."""
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
