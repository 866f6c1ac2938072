"""`fairlead demo`, which `make run` starts: Valkey, two gateway nodes and a few agents on this machine.

This module checks the ports before anything starts: a port in use is the error that everyone meets first. The package
`demo` runs the processes.
"""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.click_extensions import IntegerRange
from fairlead.cli.demo.ports import KINDS, check_ports, free_ports, ports_from


@click.command(short_help="Run a whole fleet on this machine, to try Fairlead.")
@click.option(
    "--port",
    type=IntegerRange(0, 65532),
    default=8080,
    show_default=True,
    help="First port, for the links of agents; each node takes three more. 0 takes free ports.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(".fairlead"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for data and logs.",
)
@click.option("--nodes", type=IntegerRange(1, 4), default=2, show_default=True, help="Number of gateway nodes.")
@click.option("--agents", type=IntegerRange(1, 50), default=3, show_default=True, help="Number of agents.")
@click.option(
    "--event-sinks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file of the HTTP endpoints to which events are delivered: see docs/webhooks.md.",
)
@click.pass_context
def demo(ctx: click.Context, port: int, data: Path, nodes: int, agents: int, event_sinks: Path | None) -> None:
    """Run Valkey, gateway nodes and a few agents on this machine, until Ctrl-C.

    A process that ends is restarted: kill one, and watch. The process ids are in FOLDER/*.pid.
    """
    import asyncio

    from fairlead.cli.demo.demo import Demo

    needed = 1 + nodes * len(KINDS)
    highest = 65536 - needed
    if port > highest:
        raise click.BadParameter(
            f"{port}: expected at most {highest}, because {nodes} nodes take {needed} ports", param_hint="--port"
        )
    ports = ports_from(port, nodes) if port else free_ports(nodes)
    check_ports(ports)
    ctx.exit(asyncio.run(Demo(ports, data, agents, event_sinks).run()))
