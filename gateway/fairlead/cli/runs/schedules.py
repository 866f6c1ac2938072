"""`fairlead schedules`: have runs begin again and again, list such schedules, and remove them."""

from __future__ import annotations

import uuid
from typing import IO, TYPE_CHECKING, Unpack

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.output.formats import View, output_option
from fairlead.cli.output.watch import print_view, watch_option
from fairlead.cli.payload_options import MethodCommand, check_input, payload_options, read_payload
from fairlead.cli.runs.run_options import RunOptions, pace_members, pace_options

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.client.schedules import ScheduleInfo


def _refuse_agents(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    """`run` takes it; click would suggest an option with a similar name."""
    if value is not None:
        raise click.UsageError(
            "a schedule has no --agents: expected -l SELECTOR, which finds the agents at each start (label those that "
            "you mean)"
        )


@click.group(short_help="Look after runs that begin again and again.")
def schedules() -> None:
    """Create, list and remove schedules of runs."""


@schedules.command(cls=MethodCommand, short_help="Have a run begin again and again.")
@api_options
@click.option("-l", "--selector", metavar="SELECTOR", required=True,
              help="The agents that match at each start, as of `agents ls`; '*' for all.")  # fmt: skip
@click.option("--agents", hidden=True, expose_value=False, callback=_refuse_agents, help="See --selector.")
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
    file: IO[bytes] | None, unchecked: bool, name: str, method: str, words: tuple[str, ...],
    **terms: Unpack[RunOptions],
) -> None:  # fmt: skip
    """Have a run begin again and again:
    fairlead schedules add nightly exec -l env=prod --cron '30 2 * * *' -- backup --full

    Its agents are those that match at each start and that you may use then. Prints the id of the schedule.
    """
    from fairlead.cli.terminal.results import notify

    payload, data = read_payload(method, document, words, file, unchecked=unchecked)
    pace = pace_members(method, terms)
    if unchecked:
        pace["unchecked"] = True
    else:
        check_input(method, payload, file=data is not None)

    async def create(client: Client) -> ScheduleInfo:
        if data is not None:
            pace["content"] = await client.store_content(data)
        return await client.schedules.create(
            name, cron, method, payload, selector=selector, zone=zone, missed=missed, pace=pace
        )

    made = call_api(api, token, create)
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
        head = ("ID", "NAME", "CRON", "ZONE", "METHOD", "NEXT", "LAST")
        rows = []
        for one in found:
            last = "" if one.last is None else f"{one.last.outcome} {one.last.run or ''}".rstrip()
            when = (plain(one.cron), plain(one.zone))
            rows.append((one.id, plain(one.name), *when, plain(one.method), one.next or "", plain(last)))
        wide = [
            (*row, one.missed, plain(one.selector), plain(one.subject)) for row, one in zip(rows, found, strict=True)
        ]
        return View(
            [one.id for one in found],
            {"schedules": msgspec.to_builtins(found)},
            format_table(head, rows),
            format_table((*head, "MISSED", "SELECTOR", "SUBJECT"), wide),
        )

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo("no schedules: `fairlead schedules add` makes one", err=True)


@schedules.command(short_help="Remove schedules.")
@api_options
@click.argument("wanted", metavar="ID|NAME...", nargs=-1, required=True)
def rm(api: str, token: str | None, wanted: tuple[str, ...]) -> None:
    """Remove schedules. Runs that have begun go on. A name stands for its schedule if there is only one."""

    async def remove(client: Client) -> None:
        known = await client.schedules.list()
        for id, shown in [_chosen(one, known) for one in dict.fromkeys(wanted)]:
            await client.schedules.remove(id)
            click.echo(f"removed {shown}")

    call_api(api, token, remove)


def _chosen(wanted: str, known: list[ScheduleInfo]) -> tuple[str, str]:
    """The id of the schedule, and how it is shown. An id that is not `known` may be of one that the caller may remove
    and not see."""
    found = [one for one in known if wanted == one.id] or [one for one in known if wanted == one.name]
    if not found and _is_id(wanted):
        return wanted, wanted
    if not found:
        raise click.UsageError(f"there is no schedule {wanted!r}: `fairlead schedules ls` lists all")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise click.UsageError(f"{len(found)} schedules have the name {wanted!r}: name one by its id: {ids}")
    return found[0].id, f"{found[0].name} ({found[0].id})"


def _is_id(given: str) -> bool:
    try:
        uuid.UUID(given)
    except ValueError:
        return False
    return True
