"""What a simulated agent is like: five profiles, and mixes of them such as `idle=90,chatty=10`.

The command line reads a mix, each process of the swarm asks it which of its agents are what. Shares are kept to
the agent, not on average: ten agents of `idle=90,chatty=10` are nine and one, and profiles are spread evenly over
the numbers, so that every process and every moment of the start has its part of each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from fairlead.errors import ConfigError


class Profile(StrEnum):
    IDLE = "idle"
    """Linked, beating, answering what it is asked."""
    CHATTY = "chatty"
    """Like idle, with much output and events of its own."""
    SLOW = "slow"
    """Reads a little every few seconds."""
    HALF_OPEN = "half-open"
    """Welcomed, then never heard again, its connection open: a machine that lost its network or its power."""
    STORM = "storm"
    """Like idle, and now and then all of them drop their links in the same instant."""


def parse_mix(text: str) -> dict[Profile, int]:
    """`idle`, or `idle=90,chatty=10`. Raises ConfigError with all that may be said."""
    mix: dict[Profile, int] = {}
    for part in text.split(","):
        name, sign, share = part.strip().partition("=")
        try:
            profile = Profile(name)
            weight = int(share) if sign else 1
        except ValueError:
            weight = 0
        if weight < 1 or weight > 1_000_000 or profile in mix:
            raise ConfigError(
                f"profile {part.strip()!r} is not understood in {text!r}; give one of {', '.join(Profile)}, or "
                "several once each with shares from 1 to 1000000: idle=90,chatty=10"
            )
        mix[profile] = weight
    return mix


def assign(mix: Mapping[Profile, int], agents: int) -> list[Profile]:
    """The profile of each agent, by number."""
    total = sum(mix.values())
    counts = {profile: agents * share // total for profile, share in mix.items()}
    # What division has cut off goes to those of whom the most was cut.
    short = sorted(mix, key=lambda profile: -(agents * mix[profile] % total))
    for profile in short[: agents - sum(counts.values())]:
        counts[profile] += 1
    places = [((i + 0.5) / count, profile) for profile, count in counts.items() for i in range(count)]
    return [profile for _, profile in sorted(places, key=lambda place: place[0])]
