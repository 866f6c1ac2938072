"""`fairlead events sinks`: where events are delivered, and what could not be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import Client, DeadLetterInfo, EventSinkInfo, RetriedLetterInfo


UNKNOWN = "expected the same file of sinks on all nodes"
"""What to do about a sink whose node does not deliver to it: the node may not know it."""


@click.group(cls=Group)
def sinks() -> None:
    """List the sinks of events, and send again what could not be delivered."""


@sinks.command("ls", short_help="List sinks, and how far each has come.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List the sinks that the gateway's file of sinks names, with how far each has come."""
    found = call_api(api, token, lambda client: client.event_sinks.list())
    click.echo(render(_sinks_view(found), output), nl=False)
    if not found:
        click.echo("the gateway has no sinks: the setting event_sinks names their file", err=True)


@sinks.command("dead-letters", short_help="List what a sink could not deliver.")
@api_options
@output_option
@click.argument("sink")
def dead_letters(api: str, token: str | None, output: str, sink: str) -> None:
    """List the events that a sink could not deliver in time, the oldest first."""
    found = call_api(api, token, lambda client: _all(client, sink))
    click.echo(render(_letters_view(found), output), nl=False)


@sinks.command("retry", short_help="Send dead letters again.")
@api_options
@click.option("--all", "every", is_flag=True, help="All dead letters of the sink.")
@click.argument("sink")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def retry(api: str, token: str | None, every: bool, sink: str, ids: tuple[str, ...]) -> None:
    """Send dead letters of a sink again, by their ids or all. Exits with 1 if one was not delivered."""
    _check(every, ids)

    async def run(client: Client) -> list[RetriedLetterInfo]:
        chosen = [one.id for one in await _all(client, sink)] if every else list(ids)
        return await client.event_sinks.retry(sink, chosen)

    results = call_api(api, token, run)
    failed = [one for one in results if not one.delivered]
    for one in failed:
        click.echo(plain(f"fairlead: {one.id} was not delivered: {one.error}"), err=True)
    click.echo(f"delivered {len(results) - len(failed)} of {len(results)}", err=True)
    if failed or len(results) < len(ids):
        raise SystemExit(exit_codes.FAILED)


@sinks.command("discard", short_help="Discard dead letters.")
@api_options
@click.option("--all", "every", is_flag=True, help="All dead letters of the sink.")
@click.argument("sink")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def discard(api: str, token: str | None, every: bool, sink: str, ids: tuple[str, ...]) -> None:
    """Discard dead letters of a sink, by their ids or all."""
    _check(every, ids)

    async def run(client: Client) -> int:
        chosen = [one.id for one in await _all(client, sink)] if every else list(ids)
        for id in chosen:
            await client.event_sinks.discard(sink, id)
        return len(chosen)

    click.echo(f"discarded {call_api(api, token, run)}", err=True)


def _check(every: bool, ids: tuple[str, ...]) -> None:
    if every == bool(ids):
        raise click.UsageError("expected ids of dead letters, or --all")


async def _all(client: Client, sink: str) -> list[DeadLetterInfo]:
    return [one async for one in client.event_sinks.dead_letters(sink)]


def _sinks_view(found: list[EventSinkInfo]) -> View:
    import msgspec

    head = ("SINK", "HOST", "NODE", "PENDING", "LAG", "DEAD LETTERS", "ERROR AT", "LAST ERROR")
    rows = [
        (
            one.name, one.host, one.node, str(one.pending), str(one.lag), str(one.dead_letters), one.error_at or "-",
            one.error or "-",
        )
        if one.offset is not None
        else (
            one.name, one.host, one.node, "-", "-", str(one.dead_letters), "-", f"{one.node} has not begun: {UNKNOWN}",
        )
        for one in found
    ]  # fmt: skip
    more = [(one.type or "-", one.selector or "-", one.lost_at or "-") for one in found]
    wide = [(*row, *rest) for row, rest in zip(rows, more, strict=True)]
    return View(
        [one.name for one in found],
        {"sinks": msgspec.to_builtins(found)},
        format_table(head, rows, (3, 4, 5)),
        format_table((*head, "TYPE", "SELECTOR", "LOST"), wide, (3, 4, 5)),
    )


def _letters_view(found: list[DeadLetterInfo]) -> View:
    import msgspec

    head = ("ID", "AGENT", "TYPE", "ATTEMPTS", "ERROR")
    rows = [(one.id, one.agent, one.type, str(one.attempts), one.error) for one in found]
    wide = [(*row, one.event, one.offset, str(one.size)) for row, one in zip(rows, found, strict=True)]
    return View(
        [one.id for one in found],
        {"dead_letters": msgspec.to_builtins(found)},
        format_table(head, rows, (3,)),
        format_table((*head, "EVENT", "OFFSET", "BYTES"), wide, (3,)),
    )
