"""`fairlead why AGENT`: how an agent is doing, and if it is not, why not, in words.

Called by `main`. It asks the platform API twice: for what is written down of the agent, and for its link, which only
the node that holds it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.completion import agent_ids
from fairlead.cli.output.view import View, output_option, present, watch_option

if TYPE_CHECKING:
    from fairlead.client import AgentDetail, Client, Latency, Link

SHOWN = 5
"""Open commands that are listed; the rest is counted, and listed in the wide form."""


@click.command()
@api_options
@output_option
@watch_option
@click.argument("agent", metavar="AGENT", shell_complete=agent_ids)
def why(api: str, token: str | None, agent: str, output: str, watch: bool) -> None:
    """Tell how an agent is doing, and why it is not online."""
    ask(api, token, lambda client: present(client, lambda client: _look(client, agent), output, watch))


async def _look(client: Client, agent: str) -> View:
    import msgspec

    from fairlead.errors import Unavailable

    detail = await client.agent(agent)
    link: Link | None = None
    silence = ""
    if detail.state == "online":
        try:
            link = await client.link(agent)
        except Unavailable as e:
            silence = e.message
    data = {"agent": msgspec.to_builtins(detail), "link": msgspec.to_builtins(link), "silence": silence or None}
    head = _lines(detail, link, silence)
    commands = detail.open_commands
    short = [f"  open        {command}" for command in commands[:SHOWN]]
    if len(commands) > SHOWN:
        short.append(f"              and {len(commands) - SHOWN} more; -o wide lists them")
    return View([detail.id], data, head + short, head + [f"  open        {command}" for command in commands])


def _lines(detail: AgentDetail, link: Link | None, silence: str) -> list[str]:
    where = f" on {detail.node}" if detail.node else ""
    because = f": {detail.why}" if detail.why else ""
    lines = [f"{detail.id} is {detail.state}{where} since {detail.since or 'ever'}{because}"]
    lines.append(f"  attempt     {detail.link.conn} of this start ({detail.link.boot})")
    if link is not None:
        trip = "not known yet" if link.rtt is None else f"{link.rtt * 1000:.1f} ms"
        lines.append(
            f"  link        {link.age:.0f} s old, round trip {trip}, {_count(link.commands, 'command')} open on it"
        )
        if link.round_trips is not None:
            lines.append(f"  round trips {_quantiles(link.round_trips)}")
        if link.ended:
            failed = f", {link.failed} of them failed" if link.failed else ""
            lines.append(f"  commands    {_count(link.ended, 'command')} ended on it{failed}")
        lines += [f"    {stage:12}{_quantiles(spread)}" for stage, spread in link.latency.items()]
        if link.congested:
            lines.append("  ! the agent does not read as fast as it is sent")
        if link.undelivered or link.unstored:
            lines.append(
                f"  waiting     {_count(link.undelivered, 'command')} for the agent, {link.unstored} bytes for Redis"
            )
    elif silence:
        lines.append(f"  ! {silence}")
    if detail.last_close:
        told = detail.last_reason and detail.last_reason not in detail.last_close
        said = f": {detail.last_reason}" if told else ""
        lines.append(f"  last close  {detail.last_close}{said}")
    names = ["last error", *["before it"] * len(detail.recent_failures)]
    lines += [f"  {name:10}  {one.at} {one.what}" for name, one in zip(names, detail.recent_failures, strict=False)]
    return lines


def _quantiles(spread: Latency) -> str:
    return f"p50 {spread.p50 * 1000:.1f} ms, p99 {spread.p99 * 1000:.1f} ms"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
