"""`fairlead events groups`: the groups of readers that share events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table

if TYPE_CHECKING:
    from fairlead.client import EventGroupInfo


@click.group(cls=Group)
def groups() -> None:
    """List and remove groups of readers that share the events."""


@groups.command("ls", short_help="List groups of readers, and how far they are behind.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List the groups that you have made with `fairlead events --group`; with the platform token, all.

    PENDING counts events that a reader has and has not acknowledged, LAG those that the group has not read, at most.
    """
    found = call_api(api, token, lambda client: client.event_groups.list())
    click.echo(render(_view(found), output), nl=False)
    if not found:
        click.echo("there is no group of yours: `fairlead events --group NAME` makes one", err=True)


@groups.command("rm", short_help="Remove a group of readers.")
@api_options
@click.argument("name")
def rm(api: str, token: str | None, name: str) -> None:
    """Remove a group with what it has not acknowledged. A reader that asks for it later makes it anew."""
    call_api(api, token, lambda client: client.event_groups.remove(name))
    click.echo(f"removed {name}", err=True)


def _view(found: list[EventGroupInfo]) -> View:
    import msgspec

    head = ("GROUP", "PENDING", "LAG", "LOST", "LAST READ")
    rows = [(one.name, str(one.pending), str(one.lag), one.lost_at or "-", one.used) for one in found]
    more = [(one.owner, one.agent or "-", one.type or "-", one.selector or "-", one.offset) for one in found]
    wide = [(*row, *rest) for row, rest in zip(rows, more, strict=True)]
    return View(
        [one.name for one in found],
        {"groups": msgspec.to_builtins(found)},
        format_table(head, rows, (1, 2)),
        format_table((*head, "OWNER", "AGENT", "TYPE", "SELECTOR", "OFFSET"), wide, (1, 2)),
    )
