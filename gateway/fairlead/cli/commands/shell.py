"""`fairlead shell AGENT`: a terminal on an agent.

Called by `main`. What is typed goes as numbered input, coalesced while a request is under way: a chunk that begins with
octet 0 is data, with octet 1 a new size of the window. Output comes as from any command; it is retained as a window,
because a terminal has no end of output and nobody reads it twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.commands.exec import environment, program
from fairlead.cli.completion import agent_ids

if TYPE_CHECKING:
    from fairlead.cli.terminal.raw_terminal import Terminal
    from fairlead.client import Client, Command

DATA, RESIZE = b"\x00", b"\x01"
PIECE = (64 << 10) - 1
"""Bytes of one chunk of input, behind its first octet."""
CANCEL_TIMEOUT = 5.0
"""Seconds for the request that ends the program; the deadline ends it if that does not arrive."""
LINGER = 5.0
"""Seconds for the last output of a program that takes no more input."""


class _Terms(TypedDict):
    deadline: float
    retain: Literal["window"]


@click.command(short_help="Open a terminal on an agent.", context_settings={"allow_interspersed_args": False})
@api_options
@click.option(
    "--deadline",
    type=NumberRange(min=0.1, max=86400),
    default=8 * 3600,
    show_default=True,
    metavar="SECONDS",
    help="The longest that it may stay open.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set in its environment; repeatable.")
@click.option("--cwd", metavar="FOLDER", help="Where it begins.")
@click.argument("agent", shell_complete=agent_ids)
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
) -> None:
    """Open a terminal on an agent: the login shell of its user, or another program.

    At the beginning of a line ~. leaves and ends the program, ~? tells this, ~~ is one ~. When stdin is no terminal,
    what is piped in is typed, then end of file.
    """
    from fairlead.cli.terminal.attach import pipe_stdin, watch
    from fairlead.cli.terminal.raw_terminal import Terminal, is_terminal

    payload: dict[str, object] = {"term": os.environ.get("TERM") or "dumb"}
    if argv := program(argv, "shell", agent):
        payload["argv"] = argv
    if cwd:
        payload["cwd"] = cwd
    if env:
        payload["env"] = environment(env)
    terms: _Terms = {"deadline": deadline, "retain": "window"}

    async def run(client: Client) -> int:
        if not is_terminal(0):
            command = client.command(agent, "shell", payload, **terms)
            return await watch(command, lambda command: pipe_stdin(command, DATA), cancels=True)
        terminal = Terminal(0)
        columns, rows = terminal.size()
        return await _attend(
            client.command(agent, "shell", {**payload, "cols": columns, "rows": rows}, **terms), terminal
        )

    ctx.exit(ask(api, token, run))


async def _attend(command: Command, terminal: Terminal) -> int:
    """Until the program ends or the user leaves; the exit code."""
    import asyncio

    from fairlead.cli.terminal.attach import conclude, end_tasks, talk
    from fairlead.errors import FairleadError

    async with command:
        with terminal.raw():
            showing = asyncio.create_task(_show(command))
            typing = asyncio.create_task(_type(command, terminal))
            try:
                ends: list[asyncio.Future[Any]] = [showing, typing, terminal.killed]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not showing.done() and not terminal.killed.done() and not typing.result():
                    # It takes no more input: its end is on the way.
                    await asyncio.wait([showing], timeout=LINGER)
            finally:
                await end_tasks(typing)
                if not showing.done():
                    await end_tasks(showing)
        if not showing.cancelled():
            showing.result()
    if command.end is not None:
        return conclude(command.end, command.id)
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT):
            await command.cancel()
        talk("left; the program was told to end")
    except (FairleadError, TimeoutError) as e:
        talk(f"left, but the program could not be told to end ({e}); `fairlead cancel {command.id}` does it")
    return 128 + terminal.killed.result() if terminal.killed.done() else 0


async def _show(command: Command) -> None:
    from fairlead.cli.terminal import stdio

    async for chunk in command:
        await stdio.write(2 if chunk.kind == "log" else 1, chunk.data)


async def _type(command: Command, terminal: Terminal) -> bool:
    """Send what is typed. True when the user leaves, False when the program takes no more."""
    from fairlead.cli.terminal.raw_terminal import Escape, say
    from fairlead.errors import InvalidRequest

    escape = Escape()
    try:
        while True:
            typed, size = await terminal.next()
            if size is not None:
                await command.input(RESIZE + json.dumps({"cols": size[0], "rows": size[1]}).encode())
            taken = escape.take(typed)
            if escape.asked:
                say("~. leaves and ends the program, ~~ is one ~; both at the beginning of a line")
                escape.asked = False
            for i in range(0, len(taken), PIECE):
                await command.input(DATA + taken[i : i + PIECE])
            if escape.left or terminal.ended:
                return True
    except InvalidRequest:
        return False
