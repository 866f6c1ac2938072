"""The ports of a demo's nodes: which are free, and which are taken by somebody else.

Used by `demo`, before anything is started, and by `stage`, which gives each node its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import NamedTuple

from fairlead.errors import ConfigError

HOST = "127.0.0.1"
KINDS = ("agents' links", "platform API", "probes and metrics")


class Doors(NamedTuple):
    """The ports of one node, in the order of KINDS."""

    link: int
    api: int
    admin: int


def free_doors(nodes: int) -> list[Doors]:
    """Ports that are free now. Another process may yet take one; then the gateway's log says so."""
    probes = [socket.create_server((HOST, 0)) for _ in range(nodes * len(KINDS))]
    try:
        free = iter([int(probe.getsockname()[1]) for probe in probes])
    finally:
        for probe in probes:
            probe.close()
    return [Doors(*three) for three in zip(free, free, free, strict=True)]


def check_doors(doors: Iterable[Doors]) -> None:
    """Raise ConfigError that names every port of them which is taken."""
    taken = []
    for port, kind in ((port, kind) for one in doors for port, kind in zip(one, KINDS, strict=True)):
        try:
            socket.create_server((HOST, port)).close()
        except OSError as e:
            taken.append(f"port {port} ({kind}) cannot be had: {e.strerror}")
    if taken:
        raise ConfigError(
            "; ".join(taken)
            + "\n  → stop what listens there (another demo?), or choose others: `fairlead demo --port 9080` "
            "or --port 0 (`make run RUN='--port 0'`)"
        )
