"""The options of a swarm. Made by the command line and sent to each worker as JSON on its standard input, so that the
token does not appear in process lists.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.errors import ConfigError

MOST_SOURCES = 1_024


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """One swarm. All times are in seconds and all sizes in bytes."""

    url: str
    token: str = field(repr=False)
    agents: int
    processes: int
    rate: float
    """First attempts per second, of all processes together."""
    mix: dict[str, int]
    prefix: str = "swarm"
    sources: tuple[str, ...] = ()
    output: int = 64
    """Output of a command in bytes, unless its payload names `bytes`."""
    chatty_output: int = 4_096
    event_every: float = 10.0
    """Between two events of a chatty agent, on average."""
    slow_pause: float = 2.0
    in_progress: int = 0
    """Attempts in progress at most, of all processes together. 0: as many as `agents.dial_queue` finds sensible."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one worker: `number` is its own, from 0; `began` is the start of the swarm, by the monotonic
    clock.
    """

    number: int
    options: SwarmOptions
    began: float


def parse_sources(given: Iterable[str]) -> tuple[str, ...]:
    """Parse addresses: single ones, lists with commas, and ranges of the last part, such as 127.0.0.2-9."""
    found: list[str] = []
    for item in (part.strip() for text in given for part in text.split(",")):
        first, dash, last = item.partition("-")
        try:
            begin = ipaddress.ip_address(first)
            end = ipaddress.ip_address(f"{first.rpartition('.')[0]}.{last}") if dash else begin
            span = int(end) - int(begin) + 1
            if span < 1 or len(found) + span > MOST_SOURCES:
                raise ValueError(item)
        except ValueError as e:
            raise ConfigError(
                f"invalid source {item!r}: expected an address of this machine or a range of its last part, "
                f"127.0.0.2-9; at most {MOST_SOURCES} in all"
            ) from e
        found += [str(begin + i) for i in range(span)]
    return tuple(dict.fromkeys(found))
