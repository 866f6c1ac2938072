"""`fairlead schedules`: have runs begin again and again, list such schedules, and remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.output.formats import View, output_option
from fairlead.cli.output.watch import print_view, watch_option
from fairlead.cli.payload_options import check_payload, parse_payload, payload_options
from fairlead.cli.runs.run_options import RunOptions, pace_members, pace_options

if TYPE_CHECKING:
    from fairlead.client import Client


@click.group(short_help="Look after runs that begin again and again.")
def schedules() -> None:
    """Create, list and remove schedules of runs."""


@schedules.command(short_help="Have a run begin again and again.")
@api_options
@click.option("-l", "--selector", metavar="SELECTOR", required=True,
              help="The agents that match at each start, as of `agents ls`; '*' for all.")  # fmt: skip
@click.option("--cron", required=True, metavar="EXPRESSION",
              help="Minute, hour, day of the month, month and day of the week.")  # fmt: skip
@click.option("--zone", default="UTC", show_default=True, metavar="ZONE", help="The time zone of --cron.")
@click.option("--missed", type=click.Choice(["skip", "run"]), default="skip", show_default=True,
              help="Leave out starts that no node began in time, or begin one run for all of them.")  # fmt: skip
@pace_options
@click.argument("name")
@click.argument("method")
@payload_options
def add(
    api: str, token: str | None, selector: str, cron: str, zone: str, missed: str, document: str | None,
    unchecked: bool, name: str, method: str, words: tuple[str, ...], **terms: Unpack[RunOptions],
) -> None:  # fmt: skip
    """Have a run begin again and again:
    fairlead schedules add nightly exec -l env=prod --cron '30 2 * * *' argv:='["backup"]'

    Its agents are those that match at each start and that you may use then. Prints the id of the schedule.
    """
    from fairlead.cli.terminal.results import notify

    payload, pace = parse_payload(document, words), pace_members(method, terms)
    if unchecked:
        pace["unchecked"] = True
    else:
        check_payload(method, payload, words)
    made = call_api(
        api, token,
        lambda client: client.schedules.create(
            name, cron, method, payload, selector=selector, zone=zone, missed=missed, pace=pace
        ),
    )  # fmt: skip
    notify(f"the schedule {made.name} is due at {made.next}")
    click.echo(made.id)


@schedules.command(short_help="List schedules.")
@api_options
@output_option
@watch_option
def ls(api: str, token: str | None, output: str, watch: bool) -> None:
    """List the schedules that you may see: when each is due, and how its last start went."""

    async def fetch(client: Client) -> View:
        import msgspec

        from fairlead.cli.output.table import format_table
        from fairlead.text import plain

        found = await client.schedules.list()
        head = ("ID", "NAME", "CRON", "METHOD", "NEXT", "LAST")
        rows = []
        for one in found:
            last = "" if one.last is None else f"{one.last.outcome} {one.last.run or ''}".rstrip()
            rows.append((one.id, plain(one.name), plain(one.cron), plain(one.method), one.next or "", plain(last)))
        wide = [
            (*row, plain(one.zone), one.missed, plain(one.selector), plain(one.subject))
            for row, one in zip(rows, found, strict=True)
        ]
        return View(
            [one.id for one in found],
            {"schedules": msgspec.to_builtins(found)},
            format_table(head, rows),
            format_table((*head, "ZONE", "MISSED", "SELECTOR", "SUBJECT"), wide),
        )

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo("no schedules: `fairlead schedules add` makes one", err=True)


@schedules.command(short_help="Remove schedules.")
@api_options
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def rm(api: str, token: str | None, ids: tuple[str, ...]) -> None:
    """Remove schedules. Runs that have begun go on."""

    async def remove(client: Client) -> None:
        for one in ids:
            await client.schedules.remove(one)
            click.echo(f"removed {one}")

    call_api(api, token, remove)
