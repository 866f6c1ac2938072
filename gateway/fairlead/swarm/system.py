"""Checks what this machine can provide to a swarm: open files, source ports, memory.

The command line calls it before the first connection: a load test that fails at agent 19,968 has only measured the
limits of its own machine.
"""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from fairlead.errors import ConfigError

SPARE_FILES = 64
"""File descriptors of a process besides those of its links: pipes, the event loop, libraries that are being loaded."""
COMFORTABLE = 5_000
"""The number of agents in one process for which one core is certainly enough."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ROLLUP = Path("/proc/self/smaps_rollup")


def needed_processes(agents: int) -> int:
    """The number of processes: as many as the limit of open files requires, and more if there are cores and agents for
    them.
    """
    by_files = math.ceil(agents / max(1, open_files() - SPARE_FILES))
    return max(by_files, min(os.cpu_count() or 1, math.ceil(agents / COMFORTABLE)))


def open_files() -> int:
    """How many files a worker may have open: the hard limit, to which each worker raises its soft limit."""
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
            f"{agents} agents in {processes} processes need {each + SPARE_FILES} open files each: the limit here is "
            f"{most} (use --processes {least} or more, or raise `ulimit -Hn`)"
        )


def check_ports(agents: int, sources: tuple[str, ...], *, secure: bool) -> str | None:
    """Raise ConfigError when the source addresses have too few ports; return advice when they have barely enough.
    `secure`: connections have TLS, and so a transport of the event loop.
    """
    try:
        low, high = map(int, PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return None  # not Linux: connecting reports the system's own error
    ports, each = high - low + 1, math.ceil(agents / max(1, len(sources)))
    if each > ports:
        raise ConfigError(
            f"{agents} agents from {max(1, len(sources))} source address(es) need {each} ports of each: this machine "
            f"has {ports} (net.ipv4.ip_local_port_range; name more of its addresses, --source 127.0.0.2-9 for a "
            "gateway on the loopback)"
        )
    # Linux first gives a connect every second port, and a bind before it with SO_REUSEADDR, as libuv does it, every
    # second of the lower half. Once those are used up, each search looks at thousands of ports, in the kernel, for
    # milliseconds.
    easy = ports // 4 if sources and secure else ports // 2
    if each > easy:
        return f"{each} agents for each source address: connecting is slow above {easy} (use more --source)"
    return None


def private_memory() -> int:
    """Bytes of memory that belong to this process alone and would be free if it ended; 0 if the system does not report
    it (Linux does). This is not the resident size, which includes the interpreter's pages that all workers share.
    """
    try:
        lines = ROLLUP.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
