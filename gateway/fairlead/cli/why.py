"""`fairlead why AGENT`: how an agent is doing, and if it is not, why not, in words.

Called by `main`. It asks the platform API twice: for what is written down of the agent, and for its link, which only
the node that holds it knows. What comes from agents is made harmless for the terminal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fairlead.cli.connection import api_options, ask

if TYPE_CHECKING:
    from fairlead.client import AgentDetail, Client, Link

SHOWN = 5
"""Open commands that are listed; the rest is counted."""


@click.command()
@api_options
@click.argument("agent", metavar="AGENT")
def why(api: str, token: str | None, agent: str) -> None:
    """Tell how an agent is doing, and why it is not online."""
    from fairlead.errors import Unavailable
    from fairlead.wire.identity import check_agent_id

    check_agent_id(agent)

    async def look(client: Client) -> tuple[AgentDetail, Link | None, str]:
        detail = await client.agent(agent)
        if detail.state != "online":
            return detail, None, ""
        try:
            return detail, await client.session(agent), ""
        except Unavailable as e:
            return detail, None, e.message

    detail, link, silence = ask(api, token, look)
    for line in _lines(detail, link, silence):
        click.echo(re.sub(r"[^ -~\u00a0-\uffff]", "?", line))


def _lines(detail: AgentDetail, link: Link | None, silence: str) -> list[str]:
    where = f" on {detail.node}" if detail.node else ""
    because = f": {detail.why}" if detail.why else ""
    lines = [f"{detail.id} is {detail.state}{where} since {detail.since or 'ever'}{because}"]
    lines.append(f"  attempt     {detail.session.conn} of this start ({detail.session.boot})")
    if link is not None:
        trip = "not known yet" if link.rtt is None else f"{link.rtt * 1000:.1f} ms"
        lines.append(
            f"  link        {link.age:.0f} s old, round trip {trip}, {_count(link.commands, 'command')} open on it"
        )
        if link.congested:
            lines.append("  ! the agent does not read as fast as it is sent")
        if link.undelivered or link.unstored:
            lines.append(
                f"  waiting     {_count(link.undelivered, 'command')} for the agent, {link.unstored} bytes for Redis"
            )
    elif silence:
        lines.append(f"  ! {silence}")
    if detail.last_close:
        said = f": {detail.last_reason}" if detail.last_reason else ""
        lines.append(f"  last close  {detail.last_close}{said}")
    if detail.trouble is not None:
        lines.append(f"  last error  {detail.trouble.at} {detail.trouble.what}")
    lines += [f"  open        {command}" for command in detail.open_commands[:SHOWN]]
    if len(detail.open_commands) > SHOWN:
        lines.append(f"              and {len(detail.open_commands) - SHOWN} more")
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
