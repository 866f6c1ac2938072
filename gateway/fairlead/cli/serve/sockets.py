"""The sockets of a gateway's three ports, bound before anything else is started.

Called by `serve` and `workers`. A port in use is the error that everyone meets first: it becomes a ConfigError before
Redis is asked or a process is forked. The sockets do not listen yet, because a listening socket accepts connections:
the servers call listen() once they can answer. The link port's sockets are inherited by all workers, which accept from
them in turn (`carrier.accept`). Workers share the API port with SO_REUSEPORT: the kernel spreads connections over all
sockets *that listen*. So the supervisor can hold a socket that is only bound, which reserves the port while no worker
uses it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from fairlead.bus.sibling_doorbells import SiblingDoorbells
from fairlead.carrier.accept.worker_loads import PortShare
from fairlead.errors import ConfigError
from fairlead.settings import Settings


@dataclass(frozen=True, slots=True)
class NodeSockets:
    """Bound sockets for the three ports of one node. A worker's admin port is a Unix socket that it creates itself."""

    link: list[socket.socket]
    api: list[socket.socket]
    admin: list[socket.socket] | Path
    share: PortShare | None = None
    """A worker's part in accepting, if all workers accept links from the same sockets."""
    siblings: SiblingDoorbells | None = None
    """The way to the other workers."""


def bind_node(settings: Settings) -> NodeSockets:
    """The sockets of a node that is alone on its ports."""
    return NodeSockets(
        bind("link", settings.link_host, settings.link_port),
        bind("api", settings.api_host, settings.api_port),
        bind("admin", settings.admin_host, settings.admin_port),
    )


def bind(name: str, host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """A socket for each address of `host`, all on one port; port 0 takes a free one.

    With `shared`, other processes may bind the port too. Raises ConfigError, which calls the port `name`.
    """
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            sockets.append(one := socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            port = one.getsockname()[1]  # what the kernel chose for the first address is the port of all
    except OSError as e:
        for one in sockets:
            one.close()
        raise ConfigError(
            f"cannot use {name} port {port} on {host}: {e.strerror or e}; stop what listens there, or choose another "
            f"with --{name}-port or --{name}-host"
        ) from e
    return sockets


def reserve(name: str, host: str, port: int) -> tuple[list[socket.socket], int]:
    """Bound, shared sockets that keep a port for the workers, and the port. Raises ConfigError."""
    # First bind without sharing: otherwise the workers of another gateway could share the port with ours, and nobody
    # would notice.
    alone = bind(name, host, port)
    port = alone[0].getsockname()[1]
    for one in alone:
        one.close()
    return bind(name, host, port, shared=True), port
