"""`fairlead agents`, which looks at agents and labels them, through the platform API. Called by `main`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from fairlead.cli.connection import api_options, ask

if TYPE_CHECKING:
    from fairlead.client import Agent, Client


@click.group()
def agents() -> None:
    """Look at agents."""


@agents.command("ls")
@api_options
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Labels and facts: 'env in (prod,dev),!retired'."
)
@click.option("--state", type=click.Choice(["online", "away", "offline"]), help="Only those in this state.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table", show_default=True)
def ls(api: str, token: str | None, selector: str, state: str | None, output: str) -> None:
    """List all agents that were ever seen, or those that a selector means."""

    async def collect(client: Client) -> list[Agent]:
        return [one async for one in client.agents(selector, state or "")]

    rows = ask(api, token, collect)
    if output == "name":
        for one in rows:
            click.echo(one.id)
        return
    if output == "json":
        click.echo(json.dumps({"agents": [_plain(one) for one in rows]}, indent=2))
        return
    table = [("AGENT", "STATE", "NODE", "SINCE", "WHY")]
    table += [(one.id, one.state, one.node or "-", _time(one.since), one.why or "") for one in rows]
    # What an agent has written about itself must not steer the terminal.
    cells = [[re.sub(r"[^ -~\u00a0-\uffff]", "?", cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not rows and (selector or state):
        click.echo("no agent is meant by that; `fairlead agents ls` lists all", err=True)
    elif not rows:
        click.echo("no agent was ever seen; start one: fairlead agent run --id agent-1", err=True)


@agents.command("label")
@api_options
@click.argument("agent_id", metavar="AGENT")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
def label(api: str, token: str | None, agent_id: str, changes: tuple[str, ...]) -> None:
    """Set labels of an agent, or remove them: fairlead agents label web-1 env=prod old-"""
    from fairlead.wire.identity import check_agent_id

    wanted: dict[str, str | None] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if sign:
            wanted[key] = value
        elif change.endswith("-"):
            wanted[change[:-1]] = None
        else:
            raise click.BadParameter(f"{change!r} is neither KEY=VALUE nor KEY-", param_hint="KEY=VALUE")
    check_agent_id(agent_id)
    labels = ask(api, token, lambda client: client.label(agent_id, wanted))
    for key, value in sorted(labels.items()):
        click.echo(f"{key}={value}")


def _plain(one: Agent) -> dict[str, object]:
    return {
        "id": one.id,
        "state": one.state,
        "node": one.node,
        "since": one.since,
        "facts": one.facts,
        "labels": one.labels,
        "why": one.why,
    }


def _time(since: str | None) -> str:
    return since or "-"
