"""`fairlead mock-gateway`: plays the protocol's conversations to an agent under development, and reports its errors.

This module reads the options and prints; the package `mock` does the work. Needs the base install only. The report goes
to stdout; the exit code is 1 if a conversation failed, or none was played.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import IntegerRange, NumberRange

if TYPE_CHECKING:
    from fairlead.mock.comparison import Violation
    from fairlead.mock.runner import ConversationResult
    from fairlead.mock.script import Conversation

TIMEOUT = 10.0
"""Seconds for anything that the agent must do, which is what the protocol allows for a hello and for the end after a
cancel."""


@click.command(
    "mock-gateway",
    short_help="Play the protocol's conversations to an agent under development.",
    epilog="COMMAND starts your agent; {link} in it is replaced by the URL to connect to, as in: fairlead mock-gateway "
    "-- node agent.mjs {link} --orders. The agent then takes orders on its stdin, one JSON object per line, which say "
    "what output and which end a conversation needs. Without a COMMAND, connect your agent by hand: conversations "
    "that need orders are skipped. Section 14 of docs/protocol.md describes the orders and the conversations.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--encoding", type=click.Choice(["json", "msgpack"]), default="json", show_default=True,
    help="Encoding of the link.",
)  # fmt: skip
@click.option(
    "--only", multiple=True, metavar="NAME", help="Play only this conversation; * matches anything. Repeatable."
)
@click.option(
    "--port", type=IntegerRange(0, 65535), default=8090, show_default=True,
    help="Port on the loopback interface; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--timeout", type=NumberRange(0.5, 600), default=TIMEOUT, show_default=True, metavar="SECONDS",
    help="How long to wait for what the agent must do.",
)  # fmt: skip
@click.option("--list", "only_list", is_flag=True, help="List the conversations and exit.")
@click.pass_context
def mock_gateway(
    ctx: click.Context,
    command: tuple[str, ...],
    encoding: str,
    only: tuple[str, ...],
    port: int,
    timeout: float,
    only_list: bool,
) -> None:
    """Play the conversations of docs/protocol.md to an agent under development, and report precisely what was wrong.

    Needs neither a gateway nor Redis. Listens on the loopback interface only and accepts any token.
    """
    import asyncio

    from fairlead.mock.script import load_conversations, violation_conversations

    offered = [*(c for c in load_conversations() if c.for_agents), *violation_conversations(encoding)]
    chosen = [c for c in offered if not only or any(fnmatch.fnmatchcase(c.name, n) for n in only)]
    if not chosen:
        raise click.BadParameter("no conversation has this name: expected one that --list shows", param_hint="--only")
    if only_list:
        for conversation in chosen:
            click.echo(f"{conversation.name}  (section {conversation.section})\n    {conversation.about}")
        return
    ctx.exit(asyncio.run(_play(chosen, command, encoding, port, timeout)))


async def _play(chosen: list[Conversation], command: tuple[str, ...], encoding: str, port: int, timeout: float) -> int:
    from fairlead.mock.agent_process import AgentProcess
    from fairlead.mock.runner import ConformanceRunner
    from fairlead.mock.server import MockServer

    listener = MockServer(encoding)
    await listener.start(port)
    process = AgentProcess([part.replace("{link}", listener.link) for part in command]) if command else None
    click.echo(f"listening on {listener.link}/v1/link, encoding {encoding}")
    if process is None:
        click.echo("waiting for your agent to connect, with any token")
    runner = ConformanceRunner(listener, process, timeout)
    outcomes: list[ConversationResult] = []
    try:
        for conversation in chosen:
            if process is not None:
                process.printed.clear()
            outcomes.append(await runner.play(conversation))
            _print_outcome(outcomes[-1])
            violation = outcomes[-1].violation
            if violation is not None and process is not None:
                for line in process.printed:
                    click.echo(f"      agent: {line}")
                await process.kill()  # whatever state it is in: the next conversation begins with a new process
    finally:
        if process is not None:
            await process.kill()
        await listener.stop()
    failed = sum(outcome.violation is not None for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    succeeded = len(outcomes) - failed - skipped
    click.echo(f"{len(outcomes)} conversations: {succeeded} ok, {failed} failed, {skipped} skipped")
    return exit_codes.OK if succeeded and not failed else exit_codes.FAILED


def _print_outcome(outcome: ConversationResult) -> None:
    if outcome.skipped:
        click.echo(f"skip  {outcome.conversation.name}: {outcome.skipped}")
    elif outcome.violation is None:
        click.echo(f"ok    {outcome.conversation.name}")
    else:
        _print_violation(outcome.conversation, outcome.violation)


def _print_violation(conversation: Conversation, violation: Violation) -> None:
    from fairlead.mock.comparison import SECTIONS, show

    where = f"step {violation.step} of {len(conversation.steps)}" if violation.step else "before its first step"
    click.echo(f"FAIL  {conversation.name}: {conversation.about}")
    click.echo(f"      {where}: {violation.message}")
    before = conversation.steps[violation.step - 2].gateway if violation.step > 1 else None
    after = f"the gateway's {show(before)}" if before is not None else ""
    for word, text in (("after", after), ("expected", violation.expected), ("received", violation.received)):
        if text:
            click.echo(f"      {word:8}  {text}")
    for line in violation.differs:
        click.echo(f"      differs   {line}")
    if violation.note:
        click.echo(f"      note      {violation.note}")
    click.echo(f"      see       docs/protocol.md, section {violation.section} {SECTIONS.get(violation.section, '')}")
