"""`fairlead nodes`: lists the nodes of the fleet with their load, from the platform API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option
from fairlead.cli.output.table import format_table
from fairlead.cli.output.watch import print_view, watch_option

if TYPE_CHECKING:
    from fairlead.client import Client, NodeInfo


@click.group(cls=Group)
def nodes() -> None:
    """List the nodes of the fleet."""


@nodes.command("ls", short_help="List the nodes of the fleet.")
@api_options
@click.option(
    "--state", type=click.Choice(["serving", "draining", "stopped", "lost"]), help="Only nodes in this state."
)
@output_option
@watch_option
def ls(api: str, token: str | None, state: str | None, output: str, watch: bool) -> None:
    """List the nodes of the fleet with their links and their load, as each reported it last.

    A node is lost when it has sent no heartbeat for 15 seconds. It is listed until 150 seconds after the last one.
    """

    async def fetch(client: Client) -> View:
        return _list_view(await client.nodes(state or ""))

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo(f"no node is {state}; `fairlead nodes ls` lists all nodes", err=True)


def _list_view(found: list[NodeInfo]) -> View:
    import msgspec

    rows = [
        (
            one.name, one.state if one.excluded_by is None else f"{one.state}, no new links ({one.excluded_by})",
            str(one.links), str(one.capacity), str(one.commands), f"{one.cpu:.0%}",
            f"{one.memory:.0%}" if one.memory else "-", f"{one.lag * 1000:.1f}",
        )
        for one in found
    ]  # fmt: skip
    head = ("NODE", "STATE", "LINKS", "CAPACITY", "COMMANDS", "CPU", "MEMORY", "LAG MS")
    numbers = range(2, len(head))
    more = ("ACCEPTED", "REFUSED", "MOVED", "SINCE", "HEARTBEAT", "VERSION")
    wide = [
        (*row, str(one.accepted), str(one.refused), str(one.moved), one.since, one.heartbeat, one.version)
        for row, one in zip(rows, found, strict=True)
    ]
    return View(
        [one.name for one in found],
        {"nodes": msgspec.to_builtins(found)},
        format_table(head, rows, numbers),
        format_table((*head, *more), wide, (*numbers, 8, 9, 10)),
    )
