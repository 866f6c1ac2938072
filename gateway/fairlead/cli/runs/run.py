"""`fairlead run` and `fairlead runs`: run a method on many agents, and look after what runs.

This module reads the options; `run_output` follows the run.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.click_extensions import IntegerRange
from fairlead.cli.output.formats import View, output_option
from fairlead.cli.output.watch import print_view, watch_option
from fairlead.cli.payload_options import MethodCommand, check_input, payload_options, read_payload
from fairlead.cli.runs.run_options import RunOptions, pace_members, pace_options
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.client import Client

STATES = ("running", "paused", "done", "aborted", "cancelled", "expired")
RETRIED = ("ok", "failed", "timeout", "offline", "expired", "cancelled", "skipped", "not_started")

_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: grouped by what the agents returned, or one JSON object per line, as in the API's stream.",
)


class _RunOptions(RunOptions, SigningOptions):
    """All options that `pace_members` and `load_signer` take."""


@click.command(cls=MethodCommand, short_help="Run a method on many agents.")
@api_options
@signing_options
@approval_option
@click.option("-l", "--selector", metavar="SELECTOR", help="All agents that match, as of `agents ls`; '*' for all.")
@click.option("--agents", metavar="ID,ID", help="These agents.")
@pace_options
@click.option("--dry-run", is_flag=True, help="Run nothing: print the agents that would be targets.")
@click.option("--detach", is_flag=True, help="Print the id of the run, and do not follow it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask whether to sign for the agents that a selector matches.")
@_output_option
@click.argument("method")
@payload_options
@click.pass_context
def run(
    ctx: click.Context, api: str, token: str | None, selector: str | None, agents: str | None, document: str | None,
    file: IO[bytes] | None, unchecked: bool, dry_run: bool, detach: bool, yes: bool, output: str, method: str,
    words: tuple[str, ...], **terms: Unpack[_RunOptions],
) -> None:  # fmt: skip
    """Run a method on many agents: fairlead run sys.info -l env=prod

    \b
    fairlead run exec -l env=prod -- uname -a
    fairlead run script -l env=prod --file fix.sh -- --now
    fairlead run file.put -l env=prod --file app.conf path=/etc/app.conf
    fairlead run service.restart -l env=prod --batch 20% unit=nginx.service

    KEY=TEXT is an argument that is a text, KEY:=JSON one of any other type. What follows -- is the program of exec,
    or the arguments of a script. Prints what the agents returned, the same output once with the number of agents.
    Ctrl-C cancels the run; a second Ctrl-C leaves it. A signed run is for the agents that match when you sign it: you
    are asked about them.
    """
    from fairlead.cli.runs.run_output import begin_and_follow, confirmed, preview

    if (selector is None) == (agents is None):
        raise click.UsageError("expected -l SELECTOR or --agents ID,ID: one of the two ('*' selects all agents)")
    listed = None if agents is None else [one for part in agents.split(",") if (one := part.strip())]
    if listed == []:
        raise click.BadParameter("it names no agent: expected ids separated by commas", param_hint="--agents")
    only_asked = dry_run and document is None and not words and file is None  # who would be a target
    payload, data = read_payload(method, document, words, file, unchecked=unchecked or only_asked)
    if not unchecked and not only_asked:
        check_input(method, payload, file=data is not None)
    pace, signer = pace_members(method, terms), load_signer(terms)
    if unchecked:
        pace["unchecked"] = True
    if signer is not None and terms["late"]:
        raise click.UsageError("--late and a signature: a run is signed for the agents of this moment, so expected one")

    async def work(client: Client) -> int:
        if dry_run:
            return await preview(client, method, listed, selector or "", output)
        if data is not None:
            pace["content"] = await client.store_content(data)
        if signer is None or selector is None:
            return await begin_and_follow(client, method, payload, listed, selector or "", pace, output, detach=detach)
        chosen = await confirmed(client, method, selector, yes=yes)
        return await begin_and_follow(client, method, payload, chosen, "", pace, output, detach=detach)

    ctx.exit(call_api(api, token, work, signer))


@click.group(short_help="Look after runs.")
def runs() -> None:
    """List, show, follow, pause, resume, cancel and retry runs that `fairlead run` has begun."""


@runs.command(short_help="List runs, the newest first.")
@api_options
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=IntegerRange(1, 10_000), default=20, show_default=True, metavar="N",
              help="Number of runs, at most.")  # fmt: skip
@output_option
@watch_option
def ls(api: str, token: str | None, state: str | None, limit: int, output: str, watch: bool) -> None:
    """List the runs that you may see, the newest first."""
    from fairlead.cli.runs.run_output import list_view

    async def fetch(client: Client) -> View:
        return await list_view(client, state, limit)

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo("no runs: they are kept after their end for the retention of the gateway", err=True)


@runs.command(short_help="Try again what failed in a run.")
@api_options
@approval_option
@click.option("--state", "states", type=click.Choice(RETRIED), multiple=True,
              help="Targets that ended in this state; may be repeated.  [default: all that failed]")  # fmt: skip
@click.option("--detach", is_flag=True, help="Print the id of the new run, and do not follow it.")
@_output_option
@click.argument("run_id", metavar="ID")
@click.pass_context
def retry(
    ctx: click.Context, api: str, token: str | None, states: tuple[str, ...], detach: bool, output: str, run_id: str
) -> None:
    """Begin a new run of the targets of run ID that failed, with its method, payload and pace."""
    from fairlead.cli.runs.run_output import follow_begun

    async def work(client: Client) -> int:
        return await follow_begun(client, await client.runs.retry(run_id, states=states or None), output, detach=detach)

    ctx.exit(call_api(api, token, work))


@runs.command(short_help="Show the state of a run.")
@api_options
@_output_option
@click.argument("run_id", metavar="ID")
def show(api: str, token: str | None, output: str, run_id: str) -> None:
    """Show run ID: its targets by state, and the groups of those that have ended."""
    from fairlead.cli.runs.run_output import show_run

    call_api(api, token, lambda client: show_run(client, run_id, output))


@runs.command(short_help="Print the results of a run.")
@api_options
@click.option("--from", "start", type=IntegerRange(min=0), default=0, show_default=True, metavar="OFFSET",
              help="Offset of the first result to print.")  # fmt: skip
@_output_option
@click.argument("run_id", metavar="ID")
@click.pass_context
def results(ctx: click.Context, api: str, token: str | None, start: int, output: str, run_id: str) -> None:
    """Follow run ID until it ends, and print its results as `run` would have printed them."""
    from fairlead.cli.runs.run_output import follow

    ctx.exit(call_api(api, token, lambda client: follow(client, client.runs.attach(run_id, start), output, False)))


@runs.command(short_help="Pause a run.")
@api_options
@click.argument("run_id", metavar="ID")
def pause(api: str, token: str | None, run_id: str) -> None:
    """Pause run ID: no further target starts until it is resumed. Those under way go on."""
    _ask(api, token, run_id, "pause")


@runs.command(short_help="Resume a run.")
@api_options
@approval_option
@click.argument("run_id", metavar="ID")
def resume(api: str, token: str | None, run_id: str) -> None:
    """Resume run ID, which was paused. What has not started needs an approval if a rule asks for one by now."""
    _ask(api, token, run_id, "resume")


@runs.command(short_help="Cancel a run.")
@api_options
@click.argument("run_id", metavar="ID")
def cancel(api: str, token: str | None, run_id: str) -> None:
    """Cancel run ID: no further target starts, and those under way are cancelled."""
    _ask(api, token, run_id, "cancel")


def _ask(api: str, token: str | None, run_id: str, wish: str) -> None:
    from fairlead.cli.runs.run_output import ask_for

    call_api(api, token, lambda client: ask_for(client, run_id, wish))
