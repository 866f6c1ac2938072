"""`fairlead events`: prints the events of agents, and waits for those to come; alone, or as one reader of a group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group, IntegerRange, parse_lifetime
from fairlead.cli.completion import complete_agent
from fairlead.cli.fleet.event_groups import groups
from fairlead.cli.fleet.event_sinks import sinks

if TYPE_CHECKING:
    from fairlead.client import AgentEvent, Client


@click.group(cls=Group, invoke_without_command=True, short_help="Print the events of agents.")
@api_options
@click.option("-f", "--follow", is_flag=True, help="Wait for further events, until Ctrl-C.")
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Match labels and facts: 'env in (prod,dev),!retired'."
)
@click.option("--agent", default="", metavar="AGENT", help="Only events of this agent.", shell_complete=complete_agent)
@click.option("--type", "kind", default="", metavar="TYPE", help="Only events of this type; 'disk.*' for a prefix.")
@click.option(
    "--since",
    callback=parse_lifetime,
    metavar="TIME",
    help="Begin so long ago: 30m, 12h or 7d; 0s for now. Default: the oldest.",
)
@click.option("--after", default="", metavar="OFFSET", help="Begin after the event with this offset.")
@click.option(
    "--group",
    default="",
    metavar="NAME",
    help="Share the events with all readers of this group, each of which gets some; what is printed is acknowledged.",
)
@click.option(
    "--ack-within",
    type=IntegerRange(1, 3_600),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="With --group: after this time another reader gets what was not printed.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: a line for people, or one JSON object per line.",
)
@click.pass_context
def events(
    ctx: click.Context,
    api: str,
    token: str | None,
    follow: bool,
    selector: str,
    agent: str,
    kind: str,
    since: float | None,
    after: str,
    group: str,
    ack_within: int,
    output: str,
) -> None:
    """Print the events of agents, the oldest first: fairlead events -f -l env=prod --type 'disk.*'

    With --follow it goes on through restarts of the gateway. Events that were removed before they could be read are
    reported on stderr. `--after` with the offset of the last line, which `-o json` shows, takes the stream up again.
    With `--group NAME` several readers share the events, and the group remembers how far it has come.
    """
    if ctx.invoked_subcommand is not None:
        return
    if after and since is not None:
        raise click.UsageError("--after and --since: expected one of them")

    async def run(client: Client) -> None:
        from fairlead.client import Acknowledgements, LostEvents

        reader = client.events(
            agent=agent, type=kind, selector=selector, after=after,
            since=None if since is None else int(since), follow=follow, group=group, ack_within=ack_within,
        )  # fmt: skip
        printed, some = Acknowledgements(client.event_groups, group), False
        async with printed.sent():
            async for one in reader:
                some = True
                if isinstance(one, LostEvents):
                    click.echo(f"fairlead: events before {one.offset} were removed before they were read", err=True)
                    continue
                click.echo(_json(one) if output == "json" else _line(one))
                sys.stdout.flush()
                printed.add(one.offset)
        if not some:
            click.echo("no events match; -f waits for those to come", err=True)

    call_api(api, token, run)


events.add_command(groups)
events.add_command(sinks)


def _json(one: AgentEvent) -> str:
    import msgspec

    from fairlead.cli.output.formats import as_json

    return as_json(msgspec.to_builtins(one), None)


def _line(one: AgentEvent) -> str:
    from fairlead.cli.output.formats import as_json
    from fairlead.text import plain

    if one.data_base64 is not None:
        what = f"{len(one.data_base64) * 3 // 4} bytes"
    else:
        what = "" if one.data is None else as_json(one.data, None)
    return plain(f"{one.time or '-'}  {one.agent}  {one.type}  {what}".rstrip())
