"""`fairlead demo`, which `make run` starts: Valkey, a gateway and some agents on this machine.

The command only: it finds the ports before anything is started, since a port that is taken is the fault that
everyone meets first and the one that is told best. The processes are the matter of `stage`.
"""

from __future__ import annotations

import socket
from pathlib import Path

import click

from fairlead.errors import ConfigError

HOST = "127.0.0.1"
DOORS = ("agents' links", "platform API", "probes and metrics")


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65533),
    default=8080,
    show_default=True,
    help="First of three ports: links, API, probes. 0 takes free ones.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(".fairlead"),
    show_default=True,
    help="For data and logs.",
)
@click.option("--agents", "count", type=click.IntRange(1, 50), default=3, show_default=True, help="How many agents.")
@click.pass_context
def demo(ctx: click.Context, port: int, data: Path, count: int) -> None:
    """Run Valkey, a gateway and some agents on this machine, until Ctrl-C."""
    import asyncio

    from fairlead.cli.stage import Demo

    ports = free_ports() if port == 0 else (port, port + 1, port + 2)
    check_ports(ports)
    ctx.exit(asyncio.run(Demo(ports, data, count).run()))


def free_ports() -> tuple[int, int, int]:
    """Three ports that are free now. Another process may yet take one; then the gateway's log says so."""
    probes = [socket.create_server((HOST, 0)) for _ in DOORS]
    try:
        link, api, admin = (int(probe.getsockname()[1]) for probe in probes)
    finally:
        for probe in probes:
            probe.close()
    return link, api, admin


def check_ports(ports: tuple[int, int, int]) -> None:
    """Raise ConfigError that names every port of them which is taken."""
    taken = []
    for port, door in zip(ports, DOORS, strict=True):
        try:
            socket.create_server((HOST, port)).close()
        except OSError as e:
            taken.append(f"port {port} ({door}) cannot be had: {e.strerror}")
    if taken:
        raise ConfigError(
            "; ".join(taken)
            + "\n  → stop what listens there (another demo?), or choose others: `fairlead demo --port 9080` "
            "or --port 0 (`make run RUN='--port 0'`)"
        )
