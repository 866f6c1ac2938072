"""The ports of a demo: which are free, and which are taken by somebody else.

Used by `demo`, before anything is started, and by `stage`, which gives each node its own.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from fairlead.errors import ConfigError

HOST = "127.0.0.1"
ENTRY = "agents' links"
KINDS = ("platform API", "probes and metrics", "links of one node")


class NodePorts(NamedTuple):
    """The ports of one node, in the order of KINDS."""

    api: int
    admin: int
    link: int


class DemoPorts(NamedTuple):
    """The port that agents link to, which is the balancer's, and those of each node behind it."""

    entry: int
    nodes: list[NodePorts]


def ports_from(first: int, nodes: int) -> DemoPorts:
    """`first` and those that follow it. The first node's come next, where the commands look when told nothing else."""
    doors = range(first + 1, first + 1 + nodes * len(KINDS), len(KINDS))
    return DemoPorts(first, [NodePorts(api, api + 1, api + 2) for api in doors])


def free_ports(nodes: int) -> DemoPorts:
    """Ports that are free now. Another process may yet take one; then the gateway's log says so."""
    probes = [socket.create_server((HOST, 0)) for _ in range(1 + nodes * len(KINDS))]
    try:
        free = iter([int(probe.getsockname()[1]) for probe in probes])
    finally:
        for probe in probes:
            probe.close()
    return DemoPorts(next(free), [NodePorts(*three) for three in zip(free, free, free, strict=True)])


def check_ports(ports: DemoPorts) -> None:
    """Raise ConfigError that names every port of them which is taken."""
    taken = []
    wanted = [
        (ports.entry, ENTRY),
        *((port, kind) for one in ports.nodes for port, kind in zip(one, KINDS, strict=True)),
    ]
    for port, kind in wanted:
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
