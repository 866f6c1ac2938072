"""`fairlead events`: prints the events of agents, and waits for those to come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import parse_lifetime
from fairlead.cli.completion import complete_agent

if TYPE_CHECKING:
    from fairlead.client import AgentEvent, Client


@click.command(short_help="Print the events of agents.")
@api_options
@click.option("-f", "--follow", is_flag=True, help="Wait for further events, until Ctrl-C.")
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Match labels and facts: 'env in (prod,dev),!retired'."
)
@click.option("--agent", default="", metavar="AGENT", help="Only events of this agent.", shell_complete=complete_agent)
@click.option("--type", "kind", default="", metavar="TYPE", help="Only events of this type; 'disk.*' for a prefix.")
@click.option(
    "--since", callback=parse_lifetime, metavar="TIME", help="Begin so long ago: 30m, 12h or 7d. Default: the oldest."
)
@click.option("--after", default="", metavar="OFFSET", help="Begin after the event with this offset.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: a line for people, or one JSON object per line.",
)
def events(
    api: str,
    token: str | None,
    follow: bool,
    selector: str,
    agent: str,
    kind: str,
    since: float | None,
    after: str,
    output: str,
) -> None:
    """Print the events of agents, the oldest first: fairlead events -f -l env=prod --type 'disk.*'

    With --follow it goes on through restarts of the gateway. Events that were removed before they could be read are
    reported on stderr. `--after` with the offset of the last line, which `-o json` shows, takes the stream up again.
    """
    if after and since is not None:
        raise click.UsageError("--after and --since: expected one of them")

    async def run(client: Client) -> None:
        from fairlead.cli.output.formats import as_json
        from fairlead.client import LostEvents

        reader = client.events(
            agent=agent, type=kind, selector=selector, after=after,
            since=None if since is None else int(since), follow=follow,
        )  # fmt: skip
        async for one in reader:
            if isinstance(one, LostEvents):
                click.echo(f"fairlead: events before {one.offset} were removed before they were read", err=True)
            elif output == "json":
                import msgspec

                click.echo(as_json(msgspec.to_builtins(one), None))
            else:
                click.echo(_line(one))
            sys.stdout.flush()

    call_api(api, token, run)


def _line(one: AgentEvent) -> str:
    from fairlead.cli.output.formats import as_json
    from fairlead.text import plain

    if one.data_base64 is not None:
        what = f"{len(one.data_base64) * 3 // 4} bytes"
    else:
        what = "" if one.data is None else as_json(one.data, None)
    return plain(f"{one.time or '-'}  {one.agent}  {one.type}  {what}".rstrip())
