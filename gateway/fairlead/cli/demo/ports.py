"""The ports of a demo: which ones it takes, and whether they are free.

Used by `demo`, before anything starts.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from fairlead.errors import ConfigError

HOST = "127.0.0.1"
LOAD_BALANCER = "agents' links"
KINDS = ("platform API", "probes and metrics", "links of one node")
"""What the ports of one node are for, in the order of NodePorts."""


class NodePorts(NamedTuple):
    """The ports of one node."""

    api: int
    admin: int
    link: int


class DemoPorts(NamedTuple):
    """The port of the load balancer, which agents connect to, and the ports of each node behind it."""

    links: int
    nodes: list[NodePorts]


def ports_from(first: int, nodes: int) -> DemoPorts:
    """`first` for the load balancer, and the ports after it for the nodes. The first node thus gets the ports that the
    commands use by default.
    """
    starts = range(first + 1, first + 1 + nodes * len(KINDS), len(KINDS))
    return DemoPorts(first, [NodePorts(api, api + 1, api + 2) for api in starts])


def free_ports(nodes: int) -> DemoPorts:
    """Ports that are free now. If another process takes one meanwhile, the log of the gateway reports it."""
    probes = [socket.create_server((HOST, 0)) for _ in range(1 + nodes * len(KINDS))]
    try:
        free = iter([int(probe.getsockname()[1]) for probe in probes])
    finally:
        for probe in probes:
            probe.close()
    return DemoPorts(next(free), [NodePorts(*three) for three in zip(free, free, free, strict=True)])


def check_ports(ports: DemoPorts) -> None:
    """Raise a ConfigError that names every port in use."""
    used = []
    wanted = [
        (ports.links, LOAD_BALANCER),
        *((port, kind) for one in ports.nodes for port, kind in zip(one, KINDS, strict=True)),
    ]
    for port, kind in wanted:
        try:
            socket.create_server((HOST, port)).close()
        except OSError as e:
            used.append(f"cannot use port {port} ({kind}): {e.strerror}")
    if used:
        raise ConfigError(
            "; ".join(used)
            + "\n  → stop what listens there (another demo?), or choose other ports: `fairlead demo --port 9080` "
            "or --port 0 (`make run RUN='--port 0'`)"
        )
