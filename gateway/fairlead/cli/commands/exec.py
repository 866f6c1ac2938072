"""`fairlead exec`, `results` and `cancel`: run a program on an agent, see what it wrote, end it.

This module reads the options; `terminal` follows the command. The output passes unchanged, stdout to stdout and stderr
to stderr, and the exit code is that of the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.click_extensions import IntegerRange
from fairlead.cli.command_options import TermOptions, command_options
from fairlead.cli.completion import complete_agent
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.cli.terminal.results import Printer
    from fairlead.client import Client

_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: as the program wrote it, or one JSON object per line, as in the API's stream.",
)


@click.command("exec", short_help="Run a program on an agent.", context_settings={"allow_interspersed_args": False})
@api_options
@signing_options
@approval_option
@command_options(deadline=300)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable.")
@click.option("--cwd", metavar="FOLDER", help="Working directory of the program.")
@click.option("-n", "--no-stdin", is_flag=True, help="Do not send stdin, even if it is piped.")
@_output_option
@click.argument("agent", shell_complete=complete_agent)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENT]...")
@click.pass_context
def exec_(
    ctx: click.Context,
    api: str,
    token: str | None,
    env: tuple[str, ...],
    cwd: str | None,
    no_stdin: bool,
    output: str,
    agent: str,
    argv: tuple[str, ...],
    deadline: float,
    queue: float | None,
    lane: Literal["interactive", "bulk"],
    **signing: Unpack[SigningOptions],
) -> None:
    """Run a program on an agent: fairlead exec agent-1 -- uname -a

    Prints the output as it comes and sends what is piped in to the program's stdin. Ctrl-C cancels the program and
    waits up to 10 s for its end; a second Ctrl-C exits at once.
    """
    from fairlead.cli.terminal.attach import follow_command, is_piped, pipe_stdin

    argv = split_program(argv, "exec", agent)
    if not argv:
        raise click.UsageError("no program given: expected fairlead exec AGENT -- PROGRAM [ARGUMENT]...")
    stdin = not no_stdin and is_piped()
    payload = {"argv": argv, "env": parse_environment(env), "cwd": cwd, "stdin": stdin}
    terms: TermOptions = {"deadline": deadline, "queue": queue, "lane": lane}

    async def run(client: Client) -> int:
        command = client.command(agent, "exec", payload, **terms, takes_input=stdin)
        return await follow_command(command, _printer(output), pipe_stdin if stdin else None, cancels=True)

    ctx.exit(call_api(api, token, run, load_signer(signing)))


@click.command(short_help="Print the results of a command.")
@api_options
@click.option(
    "--from",
    "start",
    type=IntegerRange(min=0),
    default=0,
    show_default=True,
    metavar="OFFSET",
    help="Offset of the first result to print.",
)
@click.option("--follow", is_flag=True, help="Wait for further results until the command ends.")
@_output_option
@click.argument("command", metavar="ID")
@click.pass_context
def results(
    ctx: click.Context, api: str, token: str | None, start: int, follow: bool, output: str, command: str
) -> None:
    """Print the results of command ID, as `exec` would have printed them."""
    from fairlead.cli import exit_codes
    from fairlead.cli.terminal.attach import follow_command
    from fairlead.cli.terminal.results import notify

    printer = _printer(output)

    async def run(client: Client) -> int:
        if follow:
            return await follow_command(client.attach(command, start), printer, None, cancels=False)
        async with client.attach(command, start, follow=False) as known:
            async for chunk in known:
                await printer.write(chunk)
        if known.end is not None:
            return await printer.end(known.end, command)
        notify(f"the command has not ended yet; `fairlead results {command} --follow` waits for it")
        return exit_codes.OK

    ctx.exit(call_api(api, token, run))


@click.command(short_help="Cancel a command.")
@api_options
@click.argument("command", metavar="ID")
def cancel(api: str, token: str | None, command: str) -> None:
    """Cancel command ID. Its program has 10 s to end; a command that has ended stays as it is."""
    from fairlead.cli.terminal.results import notify

    state = call_api(api, token, lambda client: client.cancel(command))
    if state in ("queued", "sent", "running"):
        notify(f"cancelling the command, which is {state}; `fairlead results {command} --follow` shows its end")
    else:
        notify(f"the command had already ended: {state}")


def _printer(output: str) -> Printer:
    from fairlead.cli.terminal.results import JsonLines, ProgramOutput

    return JsonLines() if output == "json" else ProgramOutput()


def split_program(argv: tuple[str, ...], command: str, agent: str) -> tuple[str, ...]:
    """The program and its arguments, from the words after the agent. These are not parsed, so that `ls -l` works as it
    is.

    The `--` may be left out. Raises UsageError if an option of `fairlead` is there, because it would be taken for the
    program.
    """
    if argv[:1] == ("--",):
        return argv[1:]
    if argv and argv[0].startswith("-"):
        raise click.UsageError(
            f"unexpected option {argv[0]} after the agent: options go before it, as in fairlead {command} {argv[0]} … "
            f"{agent} -- PROGRAM (a program of that name goes after --)"
        )
    return argv


def parse_environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """The --env options as a mapping. Raises BadParameter."""
    for one in pairs:
        if "=" not in one or one.startswith("="):
            raise click.BadParameter(f"{one!r}: expected NAME=VALUE", param_hint="--env")
    return dict(one.partition("=")[::2] for one in pairs)
