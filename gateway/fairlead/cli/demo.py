"""`fairlead demo`, which `make run` starts: Valkey, two gateway nodes and some agents on this machine.

The command only: it finds the ports before anything is started, since a port that is taken is the fault that
everyone meets first and the one that is told best. The processes are the matter of `stage`.
"""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.doors import KINDS, Doors, check_doors, free_doors


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
