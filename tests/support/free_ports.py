"""Ports for servers that cannot ask the kernel for one themselves."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 12_000, 29_999
"""Below the ports that Linux gives to outgoing connections and to servers that ask for any (32768 to 60999), so that no
other process is given the port before its server binds it; and below the node ports of Kubernetes (30000 to 32767)."""
ATTEMPTS = 100


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    choose = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = choose.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of {ATTEMPTS} ports between {LOWEST} and {HIGHEST} was free on 127.0.0.1")
