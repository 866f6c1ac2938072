"""`fairlead exec`, `results` and `cancel`: a remote program's output here, its exit code ours.

Called by `main`. Octets pass as they are, stdout to stdout and stderr to stderr. How a command is watched is the
matter of `follow`; here is what the user may ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.click_extensions import IntegerRange, NumberRange
from fairlead.cli.completion import agent_ids

if TYPE_CHECKING:
    from fairlead.client import Client

DEADLINE_OPTION = click.option(
    "--deadline",
    type=NumberRange(min=0.1, max=86400),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Time for all of it.",
)


@click.command("exec", short_help="Run a program on an agent.", context_settings={"allow_interspersed_args": False})
@api_options
@DEADLINE_OPTION
@click.option("--queue", type=NumberRange(min=0.1), metavar="SECONDS", help="Wait so long for an offline agent.")
@click.option(
    "--lane",
    type=click.Choice(["interactive", "bulk"]),
    default="interactive",
    show_default=True,
    help="What puts out much is better in bulk: the link's other commands then go first.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set in the program's environment; repeatable.")
@click.option("--cwd", metavar="FOLDER", help="The program's working directory.")
@click.option("-n", "--no-stdin", is_flag=True, help="Leave stdin alone, though something is piped into it.")
@click.argument("agent", shell_complete=agent_ids)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENT]...")
@click.pass_context
def exec_(
    ctx: click.Context,
    api: str,
    token: str | None,
    deadline: float,
    queue: float | None,
    lane: Literal["interactive", "bulk"],
    env: tuple[str, ...],
    cwd: str | None,
    no_stdin: bool,
    agent: str,
    argv: tuple[str, ...],
) -> None:
    """Run a program on an agent: fairlead exec agent-1 -- uname -a

    Output comes as it is written. What is piped in goes to the program's stdin. Ctrl-C cancels the program
    and waits up to 10 s for its end, a second Ctrl-C leaves it.
    """
    from fairlead.cli.terminal.attach import is_piped, pipe_stdin, watch

    argv = program(argv, "exec", agent)
    if not argv:
        raise click.UsageError("no program was named: fairlead exec AGENT -- PROGRAM [ARGUMENT]...")
    stdin = not no_stdin and is_piped()
    payload = {"argv": argv, "env": environment(env), "cwd": cwd, "stdin": stdin}

    async def run(client: Client) -> int:
        command = client.command(agent, "exec", payload, deadline=deadline, queue=queue, lane=lane)
        return await watch(command, pipe_stdin if stdin else None, cancels=True)

    ctx.exit(ask(api, token, run))


@click.command(short_help="Show what a command has written.")
@api_options
@click.option(
    "--from",
    "start",
    type=IntegerRange(min=0),
    default=0,
    show_default=True,
    metavar="OFFSET",
    help="The first chunk of output to show; the first of all is 0.",
)
@click.option("--follow", is_flag=True, help="Wait for what is still to come, until the command's end.")
@click.argument("command", metavar="ID")
@click.pass_context
def results(ctx: click.Context, api: str, token: str | None, start: int, follow: bool, command: str) -> None:
    """Show the results of command ID, as `exec` would have shown them."""
    from fairlead.cli.terminal.attach import conclude, show, talk, watch

    async def run(client: Client) -> int:
        if follow:
            return await watch(client.attach(command, start), None, cancels=False)
        async with client.attach(command, start, follow=False) as known:
            async for chunk in known:
                await show(chunk)
        if known.end is not None:
            return conclude(known.end, command)
        talk(f"the command has not ended; `fairlead results {command} --follow` waits for it")
        return 0

    ctx.exit(ask(api, token, run))


@click.command(short_help="Ask for the end of a command.")
@api_options
@click.argument("command", metavar="ID")
def cancel(api: str, token: str | None, command: str) -> None:
    """Ask for the end of command ID. It has 10 s for it; what is over stays as it is."""
    from fairlead.cli.terminal.attach import talk

    state = ask(api, token, lambda client: client.cancel(command))
    if state in ("queued", "sent", "running"):
        talk(f"asked for the end of a command that is {state}; `fairlead results {command} --follow` shows it")
    else:
        talk(f"the command was over before: {state}")


def program(argv: tuple[str, ...], command: str, agent: str) -> tuple[str, ...]:
    """What follows the agent is not parsed, lest `ls -l` be an option of ours; the `--` before it may be left out.
    Raises UsageError for an option of ours that stands there, which would be taken for a program.
    """
    if argv[:1] == ("--",):
        return argv[1:]
    if argv and argv[0].startswith("-"):
        raise click.UsageError(
            f"{argv[0]} stands behind the agent, where the program begins: options go before the agent, as in "
            f"fairlead {command} {argv[0]} … {agent} -- PROGRAM; a program of that name goes behind --"
        )
    return argv


def environment(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, as often as it was given."""
    for one in pairs:
        if "=" not in one or one.startswith("="):
            raise click.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--env")
    return dict(one.partition("=")[::2] for one in pairs)
