"""`fairlead agent run`, which is an agent, and `fairlead agents`, which looks at them.

Called by `main`. The first needs the base install alone (the agent's SDK), the second asks the platform API.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.connection import api_options, connect

if TYPE_CHECKING:
    from fairlead.client import Agent

DEFAULT_URL = "ws://127.0.0.1:8080"


@click.group()
def agent() -> None:
    """Be an agent."""


@agent.command("run")
@click.option("--url", default=DEFAULT_URL, show_default=True, metavar="URL", help="Address of the gateway's links.")
@click.option("--id", "name", required=True, metavar="ID", help="The agent's id.")
@click.option("--token", envvar="FAIRLEAD_AGENT_TOKEN", show_envvar=True, metavar="TOKEN", help="Token of agents.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File that holds the token.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of this agent alone: what it accepted, and results not yet stored, outlive its process there.",
)
def run(url: str, name: str, token: str | None, token_file: Path | None, journal: Path | None) -> None:
    """Run the built-in agent: it runs programs on this machine for the platform."""
    from urllib.parse import urlsplit

    from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, is_loopback
    from fairlead.wire.identity import check_agent_id

    check_agent_id(name)
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in ("ws", "wss") else None
    except ValueError:
        host = None
    if not host:
        raise click.BadParameter(f"{url!r} must begin with ws:// or wss:// and a host", param_hint="--url")
    if token and token_file:
        raise click.UsageError("--token and --token-file: only one of them can hold (FAIRLEAD_AGENT_TOKEN is --token)")
    if token_file:
        try:
            token = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise click.BadParameter(f"{token_file} cannot be read: {e}", param_hint="--token-file") from e
    if not token:
        if not is_loopback(host):
            raise click.UsageError(f"no token for the gateway at {url}: set --token-file or FAIRLEAD_AGENT_TOKEN")
        token = DEVELOPMENT_AGENT_TOKEN
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from fairlead.agent.builtin import builtin_agent

    builtin_agent(url, name, token, journal=journal).run()


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
    with connect(api, token) as client:
        found = client.agents(selector, state or "")
        if output == "name":
            for one in found:
                click.echo(one.id)
            return
        rows = list(found)
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
    with connect(api, token) as client:
        labels = client.label(check_agent_id(agent_id), wanted)
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


def _time(since: float | str | None) -> str:
    if since is None:
        return "-"
    if isinstance(since, str):
        return since
    return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
