"""How simulated agents behave: five profiles, and mixes of them such as `idle=90,chatty=10`.

The command line parses a mix, and each worker assigns profiles to its agents. Shares are exact, not averages: ten
agents of `idle=90,chatty=10` are nine and one. Profiles are spread evenly over the agents' numbers, so that every
worker and every phase of the ramp-up has its share of each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from fairlead.errors import ConfigError


class Profile(StrEnum):
    IDLE = "idle"
    """Linked, sends heartbeats, answers commands."""
    CHATTY = "chatty"
    """Like idle, with more output and with events."""
    SLOW = "slow"
    """Reads a little every few seconds."""
    HALF_OPEN = "half-open"
    """Silent after the welcome, with its connection open, like a machine that has lost its network or its power."""
    STORM = "storm"
    """Like idle, but from time to time all of them drop their links at the same moment."""


def parse_mix(text: str) -> dict[Profile, int]:
    """Parse `idle`, or `idle=90,chatty=10`. Raises ConfigError."""
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
                f"invalid profile {part.strip()!r} in {text!r}: expected one of {', '.join(Profile)}, or several with "
                "shares from 1 to 1000000, each once, as in idle=90,chatty=10"
            )
        mix[profile] = weight
    return mix


def assign(mix: Mapping[Profile, int], agents: int) -> list[Profile]:
    """The profile of each agent, by number."""
    if len(mix) == 1:
        return list(mix) * agents  # without a position for each of a million
    total = sum(mix.values())
    counts = {profile: agents * share // total for profile, share in mix.items()}
    # The remainders go to those with the largest.
    short = sorted(mix, key=lambda profile: -(agents * mix[profile] % total))
    for profile in short[: agents - sum(counts.values())]:
        counts[profile] += 1
    positions = [((i + 0.5) / count, profile) for profile, count in counts.items() for i in range(count)]
    return [profile for _, profile in sorted(positions, key=lambda position: position[0])]
