"""`fairlead shell AGENT`: a terminal on an agent.

What the user types is sent as numbered input and is collected while a request is under way. A chunk that starts with
byte 0 is data; one that starts with byte 1 is a new size of the window. The output is kept only in a window (`retain`),
because a terminal's output has no end and nobody reads it twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.commands.exec import parse_environment, split_program
from fairlead.cli.completion import complete_agent
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.cli.terminal.raw_terminal import RawTerminal
    from fairlead.client import Client, Command

DATA, RESIZE = b"\x00", b"\x01"
LAST_OUTPUT_TIMEOUT = 5.0
"""Seconds to wait for the end of a program that takes no more input."""


class _ShellTerms(TypedDict):
    deadline: float
    retain: Literal["window"]
    takes_input: bool


@click.command(short_help="Open a terminal on an agent.", context_settings={"allow_interspersed_args": False})
@api_options
@signing_options
@approval_option
@click.option(
    "--deadline",
    type=NumberRange(min=0.1, max=86400),
    default=8 * 3600,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the terminal.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeatable.")
@click.option("--cwd", metavar="FOLDER", help="Working directory of the program.")
@click.argument("agent", shell_complete=complete_agent)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM [ARGUMENT]...]")
@click.pass_context
def shell(
    ctx: click.Context,
    api: str,
    token: str | None,
    deadline: float,
    env: tuple[str, ...],
    cwd: str | None,
    agent: str,
    argv: tuple[str, ...],
    **signing: Unpack[SigningOptions],
) -> None:
    """Open a terminal on an agent: the login shell of the agent's user, or another program.

    At the start of a line, ~. leaves and ends the program, ~? shows these escapes, and ~~ types one ~. If stdin is not
    a terminal, its content is typed, followed by end of file.
    """
    from fairlead.cli.terminal.attach import follow_command, pipe_stdin
    from fairlead.cli.terminal.raw_terminal import RawTerminal, is_terminal
    from fairlead.cli.terminal.results import ProgramOutput

    payload: dict[str, object] = {"term": os.environ.get("TERM") or "dumb"}
    if argv := split_program(argv, "shell", agent):
        payload["argv"] = argv
    if cwd:
        payload["cwd"] = cwd
    if env:
        payload["env"] = parse_environment(env)
    terms: _ShellTerms = {"deadline": deadline, "retain": "window", "takes_input": True}

    async def run(client: Client) -> int:
        if not is_terminal(0):
            command = client.command(agent, "shell", payload, **terms)
            return await follow_command(
                command, ProgramOutput(), lambda command: pipe_stdin(command, DATA), cancels=True
            )
        terminal = RawTerminal(0)
        columns, rows = terminal.size()
        command = client.command(agent, "shell", {**payload, "cols": columns, "rows": rows}, **terms)
        return await _run_terminal(command, terminal)

    ctx.exit(call_api(api, token, run, load_signer(signing)))


async def _run_terminal(command: Command, terminal: RawTerminal) -> int:
    """Connect the terminal to the program until it ends or the user leaves; returns the exit code."""
    import asyncio

    from fairlead.cli import exit_codes
    from fairlead.cli.terminal.attach import cancel_tasks
    from fairlead.cli.terminal.cancellation import cancel_command, cancelled_on_failure
    from fairlead.cli.terminal.results import RECORDED, notify, report_end

    async with cancelled_on_failure(command):
        if command.recorded:
            notify(RECORDED)
        with terminal.raw():
            printing = asyncio.create_task(_print_output(command))
            typing = asyncio.create_task(_send_input(command, terminal))
            try:
                ends: list[asyncio.Future[Any]] = [printing, typing, terminal.killed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not printing.done() and not terminal.killed.done() and not typing.result():
                    # The program accepts no more input, so its end will follow soon.
                    await asyncio.wait([printing], timeout=LAST_OUTPUT_TIMEOUT)
            finally:
                await cancel_tasks(typing)
                if not printing.done():
                    await cancel_tasks(printing)
        if not printing.cancelled():
            printing.result()
    if command.end is not None:
        return report_end(command.end, command.id)
    if await cancel_command(command):
        notify("left the terminal and cancelled the program")
    return 128 + terminal.killed.result() if terminal.killed.done() else exit_codes.OK


async def _print_output(command: Command) -> None:
    from fairlead.cli.terminal import stdio

    async for chunk in command:
        await stdio.write(2 if chunk.kind == "log" else 1, chunk.data)


async def _send_input(command: Command, terminal: RawTerminal) -> bool:
    """Send what is typed. Returns True if the user leaves, False if the program accepts no more input."""
    from fairlead.cli.terminal.escapes import EscapeParser
    from fairlead.cli.terminal.raw_terminal import notify_raw
    from fairlead.errors import InvalidRequest

    escapes = EscapeParser()
    try:
        while True:
            typed, size = await terminal.next()
            if size is not None:
                await command.input(RESIZE + json.dumps({"cols": size[0], "rows": size[1]}).encode())
            data = escapes.feed(typed)
            if escapes.help_requested:
                notify_raw("~. leaves and ends the program, ~~ types one ~; both at the start of a line")
                escapes.help_requested = False
            most = command.input_limit - len(DATA)
            for i in range(0, len(data), most):
                await command.input(DATA + data[i : i + most])
            if escapes.left or terminal.ended:
                return True
    except InvalidRequest:
        return False
