"""`fairlead demo`, which `make run` starts: Valkey, two gateway nodes and some agents on this machine.

The command only: it finds the ports before anything is started, since a port that is taken is the fault that
everyone meets first and the one that is told best. The processes are the matter of `stage`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from fairlead.errors import ConfigError

HOST = "127.0.0.1"
KINDS = ("agents' links", "platform API", "probes and metrics")


class Doors(NamedTuple):
    """The ports of one node, in the order of KINDS."""

    link: int
    api: int
    admin: int


@click.command(short_help="Run all of it on this machine, to try it.")
@click.option(
    "--port",
    type=click.IntRange(0, 65533),
    default=8080,
    show_default=True,
    help="First port; each node takes three: links, API, probes. 0 takes free ones.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(".fairlead"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for data and logs.",
)
@click.option("--nodes", type=click.IntRange(1, 4), default=2, show_default=True, help="How many gateway nodes.")
@click.option("--agents", "count", type=click.IntRange(1, 50), default=3, show_default=True, help="How many agents.")
@click.pass_context
def demo(ctx: click.Context, port: int, data: Path, nodes: int, count: int) -> None:
    """Run Valkey, gateway nodes and some agents on this machine, until Ctrl-C."""
    import asyncio

    from fairlead.cli.stage import Demo

    most = 65536 - nodes * len(KINDS)
    if port > most:
        raise click.BadParameter(
            f"{nodes} nodes take {nodes * len(KINDS)} ports, so {most} is the highest", param_hint="--port"
        )
    doors = [Doors(first, first + 1, first + 2) for first in range(port, port + nodes * len(KINDS), len(KINDS))]
    if port == 0:
        doors = free_doors(nodes)
    check_doors(doors)
    ctx.exit(asyncio.run(Demo(doors, data, count).run()))


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
