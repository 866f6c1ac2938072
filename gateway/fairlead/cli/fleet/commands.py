"""`fairlead commands`: lists the commands that have not ended, from the platform API."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group, IntegerRange
from fairlead.cli.output.formats import View, output_option
from fairlead.cli.output.table import format_table
from fairlead.cli.output.watch import print_view, watch_option
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import Client, OpenCommand


@click.group(cls=Group)
def commands() -> None:
    """List the commands that have not ended."""


@commands.command("ls", short_help="List the commands that have not ended.")
@api_options
@click.option("--agent", default="", metavar="ID", help="Only commands of this agent.")
@click.option("--method", default="", metavar="METHOD", help="Only commands with this method.")
@click.option("--state", type=click.Choice(["queued", "sent", "running"]), help="Only commands in this state.")
@click.option("--limit", type=IntegerRange(1, 100_000), default=1_000, show_default=True, metavar="N",
              help="Number of commands, at most.")  # fmt: skip
@output_option
@watch_option
def ls(
    api: str, token: str | None, agent: str, method: str, state: str | None, limit: int, output: str, watch: bool
) -> None:
    """List the commands that have not ended and whose results you may read."""

    async def fetch(client: Client) -> View:
        found: list[OpenCommand] = []
        async with aclosing(client.commands.list(agent=agent, method=method, state=state or "")) as listed:
            async for one in listed:
                found.append(one)
                if len(found) == limit:
                    break
        return _view(sorted(found, key=lambda one: one.created or ""))

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo("no command is open", err=True)


def _view(found: list[OpenCommand]) -> View:
    import msgspec

    rows = [
        (one.id, one.state, plain(one.method), one.targets[0].agent if one.targets else "", one.created or "")
        for one in found
    ]
    wide = [(*row, one.expires or "", one.lane, str(one.results), plain(one.subject or ""))
            for row, one in zip(rows, found, strict=True)]  # fmt: skip
    head = ("COMMAND", "STATE", "METHOD", "AGENT", "CREATED")
    return View(
        [one.id for one in found],
        {"commands": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "EXPIRES", "LANE", "RESULTS", "SUBJECT"), wide, (7,)),
    )
