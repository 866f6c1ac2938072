"""`fairlead run` and `fairlead runs`: run a method on many agents, and look after what runs.

This module reads the options; `run_output` follows the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import IntegerRange, NumberRange

if TYPE_CHECKING:
    from fairlead.client import Client

F = TypeVar("F", bound=Callable[..., object])

_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: grouped by what the agents returned, or one JSON object per line, as in the API's stream.",
)


class _RunTerms(TypedDict):
    concurrency: int
    ramp: int
    canary: int
    abort_after: str | None
    abort_minimum: int
    deadline: float
    run_deadline: float
    skip_offline: bool


def _pace_options(command: F) -> F:
    """How fast the run goes, and when it stops."""
    for option in reversed(
        (
            click.option("--concurrency", type=IntegerRange(1, 10_000), default=500, show_default=True, metavar="N",
                         help="Targets under way at once, at most."),
            click.option("--ramp", type=IntegerRange(0, 10_000), default=0, metavar="N",
                         help="Begin with N targets at once, and double that after each round."),
            click.option("--canary", type=IntegerRange(0, 10_000), default=0, metavar="N",
                         help="N targets must end well before any other starts."),
            click.option("--abort-after", metavar="N|N%",
                         help="Start no more targets once N have failed, or more than N % of those that have ended."),
            click.option("--abort-minimum", type=IntegerRange(1, 100_000), default=20, show_default=True, metavar="N",
                         help="Targets that must have ended before a share of them can abort the run."),
            click.option("--deadline", type=NumberRange(min=0.1, max=86400), default=60, show_default=True,
                         metavar="SECONDS", help="Time limit of each target, from its start."),
            click.option("--run-deadline", type=NumberRange(min=0.1, max=7 * 86400), default=3600, show_default=True,
                         metavar="SECONDS", help="Time limit of the whole run."),
            click.option("--skip-offline", is_flag=True, help="Pass over agents that are offline, not as failures."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(short_help="Run a method on many agents.")
@api_options
@click.option("-l", "--selector", metavar="SELECTOR", help="All agents that match, as of `agents ls`; '*' for all.")
@click.option("--agents", metavar="ID,ID", help="These agents.")
@_pace_options
@click.option("--json", "payload", metavar="JSON", help="The payload, in place of NAME=VALUE.")
@click.option("--dry-run", is_flag=True, help="Run nothing: print the agents that would be targets.")
@click.option("--detach", is_flag=True, help="Print the id of the run, and do not follow it.")
@_output_option
@click.argument("method")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.pass_context
def run(
    ctx: click.Context, api: str, token: str | None, selector: str | None, agents: str | None, payload: str | None,
    dry_run: bool, detach: bool, output: str, method: str, arguments: tuple[str, ...], **terms: Unpack[_RunTerms],
) -> None:  # fmt: skip
    """Run a method on many agents: fairlead run sys.info -l env=prod

    A VALUE that is JSON is passed as JSON, any other as text: fairlead run exec -l env=prod argv='["uname", "-a"]'
    Prints what the agents returned, the same output once with the number of agents. Ctrl-C cancels the run; a second
    Ctrl-C leaves it.
    """
    from fairlead.cli.runs.run_output import begin_and_follow, preview

    if (selector is None) == (agents is None):
        raise click.UsageError("expected -l SELECTOR or --agents ID,ID: one of the two ('*' selects all agents)")
    listed = None if agents is None else [one for part in agents.split(",") if (one := part.strip())]
    if listed == []:
        raise click.BadParameter("it names no agent: expected ids separated by commas", param_hint="--agents")
    what = _payload(payload, arguments)
    pace = _pace(terms)

    _warn_unsigned()

    async def work(client: Client) -> int:
        if dry_run:
            return await preview(client, method, listed, selector or "", output)
        return await begin_and_follow(client, method, what, listed, selector or "", pace, output, detach=detach)

    ctx.exit(call_api(api, token, work))


@click.group(short_help="Look after runs.")
def runs() -> None:
    """Show, follow, pause, resume and cancel runs that `fairlead run` has begun."""


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
@click.argument("run_id", metavar="ID")
def resume(api: str, token: str | None, run_id: str) -> None:
    """Resume run ID, which was paused."""
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


def _warn_unsigned() -> None:
    """Tell a user whose commands are signed that those of a run are not."""
    import os

    from fairlead.cli.terminal.results import notify

    if os.environ.get("FAIRLEAD_SIGN_WITH") or os.environ.get("FAIRLEAD_SIGN_COMMAND"):
        notify("a run is not signed: agents with trusted keys refuse it, and run only what `fairlead exec` signs")


def _payload(given: str | None, arguments: tuple[str, ...]) -> object:
    """The payload of --json, or an object of the arguments. Raises BadParameter."""
    import json

    if given is not None:
        if arguments:
            raise click.UsageError("--json and NAME=VALUE: expected one of them")
        try:
            return json.loads(given)
        except ValueError as e:
            raise click.BadParameter(f"{e}; expected JSON", param_hint="--json") from e
    made: dict[str, object] = {}
    for one in arguments:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{one!r}: expected NAME=VALUE", param_hint="arguments")
        try:
            made[name] = json.loads(value)
        except ValueError:
            made[name] = value
    return made


def _pace(terms: _RunTerms) -> dict[str, object]:
    """The options as members of the request. Raises BadParameter."""
    pace: dict[str, object] = {name: terms[name] for name in ("concurrency", "ramp", "canary", "deadline")}
    pace["run_deadline"] = terms["run_deadline"]
    pace["on_offline"] = "skip" if terms["skip_offline"] else "fail"
    given = terms["abort_after"]
    if given is None:
        return pace
    number = given.removesuffix("%")
    try:
        value = float(number) if given.endswith("%") else int(number)
    except ValueError:
        value = 0
    if given.endswith("%") and 0 < value <= 100:
        pace["abort_above"] = {"share": value / 100, "minimum": terms["abort_minimum"]}
    elif not given.endswith("%") and 0 < value <= 100_000:
        pace["abort_after"] = {"failed": value}
    else:
        raise click.BadParameter(f"{given!r}: expected a number of targets, or a share such as 5%",
                                 param_hint="--abort-after")  # fmt: skip
    return pace
