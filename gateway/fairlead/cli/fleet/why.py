"""`fairlead why AGENT`: explains how an agent is doing and, if it is not online, why not.

It asks the platform API twice: for what the fleet has stored about the agent, and for its link, which only the node
that holds the link knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.completion import complete_agent
from fairlead.cli.output.formats import View, format_close, output_option
from fairlead.cli.output.watch import print_view, watch_option

if TYPE_CHECKING:
    from fairlead.client import AgentDetail, Client, Latency, Link

SHOWN = 5
"""Open commands that the table lists; the wide one lists all."""


@click.command(short_help="Explain how an agent is doing, and why it is not online.")
@api_options
@output_option
@watch_option
@click.argument("agent", metavar="AGENT", shell_complete=complete_agent)
def why(api: str, token: str | None, agent: str, output: str, watch: bool) -> None:
    """Explain how an agent is doing and, if it is not online, why not."""
    call_api(api, token, lambda client: print_view(client, lambda client: _fetch(client, agent), output, watch))


async def _fetch(client: Client, agent: str) -> View:
    import msgspec

    from fairlead.errors import Unavailable

    detail = await client.agent(agent)
    link: Link | None = None
    link_error = ""
    if detail.state == "online":
        try:
            link = await client.link(agent)
        except Unavailable as e:
            link_error = e.message
    data = {
        "agent": msgspec.to_builtins(detail),
        "link": msgspec.to_builtins(link),
        "link_error": link_error or None,
    }
    head = [*_state_lines(detail), *(_link_lines(link) if link is not None else []), *_history_lines(detail)]
    if link_error:
        head.append(f"  ! {link_error}")
    commands = detail.open_commands
    short = [f"  open        {command}" for command in commands[:SHOWN]]
    if len(commands) > SHOWN:
        short.append(f"              and {len(commands) - SHOWN} more; -o wide lists them")
    return View([detail.id], data, head + short, head + [f"  open        {command}" for command in commands])


def _state_lines(detail: AgentDetail) -> list[str]:
    where = f" on {detail.node}" if detail.node else ""
    because = f": {detail.why}" if detail.why else ""
    return [
        f"{detail.id} is {detail.state}{where} since {detail.since or 'ever'}{because}",
        f"  attempt     {detail.link.conn} of this start ({detail.link.boot})",
        *_clone_lines(detail),
    ]


def _clone_lines(detail: AgentDetail) -> list[str]:
    if not detail.cloned:
        return []
    return [
        f"  ! two copies used its key, last at {detail.cloned}: a cloned disk, or two processes with one folder",
        "    stop one of them, or let it enrol with an id of its own; if the key was stolen, revoke it",
    ]


def _link_lines(link: Link) -> list[str]:
    trip = "unknown yet" if link.rtt is None else f"{link.rtt * 1000:.1f} ms"
    lines = [f"  link        {link.age:.0f} s old, round trip {trip}, {_count(link.commands, 'open command')}"]
    if link.round_trips is not None:
        lines.append(f"  round trips {_quantiles(link.round_trips)}")
    if link.ended:
        failed = f", {link.failed} of them failed" if link.failed else ""
        lines.append(f"  commands    {_count(link.ended, 'command')} ended on this link{failed}")
    lines += [f"    {stage:12}{_quantiles(spread)}" for stage, spread in link.latency.items()]
    if link.congested:
        lines.append("  ! the agent reads more slowly than the gateway sends")
    if link.undelivered or link.unstored:
        lines.append(
            f"  waiting     {_count(link.undelivered, 'command')} for the agent, {link.unstored} bytes for Redis"
        )
    return lines


def _history_lines(detail: AgentDetail) -> list[str]:
    lines = []
    if closed := format_close(detail.last_close, detail.last_reason):
        lines.append(f"  last close  {closed}")
    names = ["last error", *["before it"] * len(detail.recent_failures)]
    return lines + [
        f"  {name:10}  {one.at} {one.message}" for name, one in zip(names, detail.recent_failures, strict=False)
    ]


def _quantiles(spread: Latency) -> str:
    return f"p50 {spread.p50 * 1000:.1f} ms, p99 {spread.p99 * 1000:.1f} ms"


def _count(number: int, words: str) -> str:
    return f"{number} {words}{'' if number == 1 else 's'}"
