"""Ports for servers that cannot ask the kernel for one themselves."""

from __future__ import annotations

import os
import random
import socket
from collections import deque

LOWEST, HIGHEST = 12_000, 29_999
"""Below the ports that Linux gives to outgoing connections and to servers that ask for any (32768 to 60999), so that no
other process is given the port before its server binds it; and below the node ports of Kubernetes (30000 to 32767)."""
ATTEMPTS = 1_000

_given: deque[int] = deque(maxlen=1_000)
"""What this process was given last: a server binds its port only later, and the next one must not be given the same."""


def free_port() -> int:
    """A port of loopback that nobody uses now, and that neither this process was given before nor another one of the
    same test run is given."""
    choose = random.SystemRandom()
    mine, count = _share()
    for _ in range(ATTEMPTS):
        port = choose.randrange(LOWEST + mine, HIGHEST + 1, count)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.append(port)
        return port
    raise RuntimeError(f"none of {ATTEMPTS} ports between {LOWEST} and {HIGHEST} was free on 127.0.0.1")


def _share() -> tuple[int, int]:
    """Which share of the ports this process has, and how many shares there are: one for each process of pytest-xdist,
    and one for those that run beside it."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")) + 1
    return (int(number) + 1) % count if number else 0, count
