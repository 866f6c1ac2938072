"""`fairlead demo`, which `make run` starts: Valkey, two gateway nodes and some agents on this machine.

The command only: it finds the ports before anything is started, since a port that is taken is the fault that
everyone meets first and the one that is told best. The processes are the matter of `stage`.
"""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.click_extensions import IntegerRange
from fairlead.cli.demo.ports import KINDS, check_ports, free_ports, ports_from


@click.command(short_help="Run all of it on this machine, to try it.")
@click.option(
    "--port",
    type=IntegerRange(0, 65532),
    default=8080,
    show_default=True,
    help="First port, for the links of agents; each node takes three more. 0 takes free ones.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(".fairlead"),
    show_default=True,
    metavar="FOLDER",
    help="Folder for data and logs.",
)
@click.option("--nodes", type=IntegerRange(1, 4), default=2, show_default=True, help="How many gateway nodes.")
@click.option("--agents", "count", type=IntegerRange(1, 50), default=3, show_default=True, help="How many agents.")
@click.pass_context
def demo(ctx: click.Context, port: int, data: Path, nodes: int, count: int) -> None:
    """Run Valkey, gateway nodes and some agents on this machine, until Ctrl-C.

    What ends before that is started again: kill one, and watch. The process ids stand in FOLDER/*.pid.
    """
    import asyncio

    from fairlead.cli.demo.demo import Demo

    count_of_ports = 1 + nodes * len(KINDS)
    highest = 65536 - count_of_ports
    if port > highest:
        raise click.BadParameter(
            f"{nodes} nodes take {count_of_ports} ports, so {highest} is the highest", param_hint="--port"
        )
    ports = ports_from(port, nodes) if port else free_ports(nodes)
    check_ports(ports)
    ctx.exit(asyncio.run(Demo(ports, data, count).run()))
