"""What a swarm shall do, and whether this machine can: descriptors, source ports, processes.

Made by the command line and sent to each process as JSON on its standard input, so that the token stands in no
argument list. The checks come before the first connection: a load test that fails at agent 19,968 has measured
the limits of its own machine.
"""

from __future__ import annotations

import ipaddress
import math
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.errors import ConfigError

SPARE_FILES = 64
"""Descriptors of a process beside its links: pipes, the event loop, libraries that are read."""
COMFORT = 5_000
"""Agents of one process below which one core surely keeps up with all that they do."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MOST_SOURCES = 1_024


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """One swarm. All times are in seconds, all sizes in bytes."""

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
    """Of a command, unless its payload names `bytes`."""
    chatty_output: int = 4_096
    event_every: float = 10.0
    """Between two events of a chatty agent, on average."""
    slow_pause: float = 2.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The plan for one process: `number` is its own, from 0; `began` the start of all, by the monotonic clock."""

    number: int
    options: SwarmOptions
    began: float


def needed_processes(agents: int) -> int:
    """As many as the limit of descriptors demands, and more while there are cores and agents for them."""
    by_files = math.ceil(agents / max(1, open_files() - SPARE_FILES))
    return max(by_files, min(os.cpu_count() or 1, math.ceil(agents / COMFORT)))


def open_files() -> int:
    """How many descriptors a process of ours may have: the hard limit, to which each raises its soft one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_open_files(agents: int, processes: int) -> None:
    """Raise ConfigError when the processes cannot hold the agents."""
    each, most = math.ceil(agents / processes), open_files()
    if each + SPARE_FILES > most:
        least = math.ceil(agents / max(1, most - SPARE_FILES))
        raise ConfigError(
            f"{agents} agents in {processes} processes take {each + SPARE_FILES} open files each, and a process here "
            f"may have {most}; give --processes {least} or more, or raise `ulimit -Hn`"
        )


def check_ports(agents: int, sources: tuple[str, ...]) -> str | None:
    """Raise ConfigError when the source addresses have too few ports; advice when they have scarcely enough."""
    try:
        low, high = map(int, PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return None  # not Linux: the system's own error will tell
    ports, each = high - low + 1, math.ceil(agents / max(1, len(sources)))
    if each > ports:
        raise ConfigError(
            f"{agents} agents from {max(1, len(sources))} source address(es) take {each} ports of each, and this "
            f"machine gives {ports} (net.ipv4.ip_local_port_range); name more addresses of this machine: --source "
            "127.0.0.2-9 for a gateway on the loopback"
        )
    # Linux gives a connect every second port first, and a bind with SO_REUSEADDR, which libuv sets, every second of
    # the lower half. Once those are used up each search looks at thousands, in the kernel, for milliseconds.
    easy = ports // 4 if sources else ports // 2
    if each > easy:
        return f"{each} agents for each source address: above {easy} connects are slow, more --source would help"
    return None


def parse_sources(given: Iterable[str]) -> tuple[str, ...]:
    """Addresses, single, comma-separated, or as a range of the last part: 127.0.0.2-9."""
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
                f"source {item!r} is not understood; give an address of this machine or a range of its last part, "
                f"127.0.0.2-9, at most {MOST_SOURCES} in all"
            ) from e
        found += [str(begin + i) for i in range(span)]
    return tuple(dict.fromkeys(found))
