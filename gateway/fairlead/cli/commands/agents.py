"""`fairlead agents`: who is there, one of them, its labels, the end of its link and of itself. Called by `main`.

All of it asks the platform API; why an agent is not online in the words of a person is the matter of `why`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.click_extensions import Group
from fairlead.cli.completion import agent_ids
from fairlead.cli.output.view import View, output_option, pairs, present, show, table, watch_option

if TYPE_CHECKING:
    from fairlead.client import Agent, AgentDetail, Client


@click.group(cls=Group)
def agents() -> None:
    """Look at agents, label them, close their links, forget those that left."""


@agents.command("ls", short_help="List agents.")
@api_options
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Labels and facts: 'env in (prod,dev),!retired'."
)
@click.option("--state", type=click.Choice(["online", "away", "offline"]), help="Only those in this state.")
@output_option
@watch_option
def ls(api: str, token: str | None, selector: str, state: str | None, output: str, watch: bool) -> None:
    """List all agents that were ever seen, or those that a selector means."""

    async def look(client: Client) -> View:
        return _listed([one async for one in client.agents(selector, state or "")])

    view = ask(api, token, lambda client: present(client, look, output, watch))
    if not view.names and (selector or state):
        click.echo("no agent is meant by that; `fairlead agents ls` lists all", err=True)
    elif not view.names:
        click.echo("no agent was ever seen; start one: fairlead agent run --id agent-1", err=True)


@agents.command("get", short_help="Show one agent.")
@api_options
@output_option
@watch_option
@click.argument("agent_id", metavar="AGENT", shell_complete=agent_ids)
def get(api: str, token: str | None, agent_id: str, output: str, watch: bool) -> None:
    """Show one agent: its link, labels and facts, and what is open for it."""

    async def look(client: Client) -> View:
        return _detailed(await client.agent(agent_id))

    ask(api, token, lambda client: present(client, look, output, watch))


@agents.command("label", short_help="Set or remove labels of an agent.")
@api_options
@output_option
@click.argument("agent_id", metavar="AGENT", shell_complete=agent_ids)
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
def label(api: str, token: str | None, agent_id: str, changes: tuple[str, ...], output: str) -> None:
    """Set labels of an agent, or remove them: fairlead agents label web-1 env=prod old-

    What is shown are all its labels afterwards.
    """
    wanted: dict[str, str | None] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if sign:
            wanted[key] = value
        elif change.endswith("-"):
            wanted[change[:-1]] = None
        else:
            raise click.BadParameter(f"{change!r} is neither KEY=VALUE nor KEY-", param_hint="KEY=VALUE")
    labels = ask(api, token, lambda client: client.label(agent_id, wanted))
    lines = [f"{key}={value}" for key, value in sorted(labels.items())]
    show(View([agent_id], {"id": agent_id, "labels": labels}, lines, lines), output)


@agents.command("disconnect", short_help="Close the link of an agent.")
@api_options
@click.argument("agent_id", metavar="AGENT", shell_complete=agent_ids)
def disconnect(api: str, token: str | None, agent_id: str) -> None:
    """Close the link of an agent. It connects again, and goes on with what it runs."""
    ask(api, token, lambda client: client.disconnect(agent_id))
    click.echo(f"the link of {agent_id} is closed; `fairlead agents get {agent_id} -w` shows the next", err=True)


@agents.command("rm", short_help="Forget agents that left.")
@api_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.argument("agent_ids_", metavar="AGENT...", nargs=-1, required=True, shell_complete=agent_ids)
@click.pass_context
def rm(ctx: click.Context, api: str, token: str | None, yes: bool, agent_ids_: tuple[str, ...]) -> None:
    """Forget agents that left: fairlead agents rm web-1 web-2

    Their labels, facts and events are gone then, and commands that wait for them end. An agent that is online is not
    removed; one that comes back is a new one.
    """
    from fairlead.errors import AgentOnline, AgentUnknown

    names = tuple(dict.fromkeys(agent_ids_))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked, as stdin is no terminal: say --yes to remove them unasked")
        what = names[0] if len(names) == 1 else f"{len(names)} agents ({', '.join(names[:5])}{'…' * (len(names) > 5)})"
        click.confirm(f"Forget {what}, with labels, facts and events?", abort=True, err=True)

    async def remove(client: Client) -> int:
        """How many were not removed."""
        left = 0
        for name in names:
            try:
                done = await client.delete(name)
            except (AgentOnline, AgentUnknown) as e:
                if len(names) == 1:
                    raise
                left += 1
                click.echo(e.message, err=True)
            else:
                click.echo(f"{name} is forgotten: {done.commands} open commands ended, {done.events} events removed")
        return left

    ctx.exit(1 if ask(api, token, remove) else 0)


def _listed(found: list[Agent]) -> View:
    import msgspec

    rows = [(one.id, one.state, one.node or "-", one.since or "-", one.why or "") for one in found]
    head = ("AGENT", "STATE", "NODE", "SINCE", "WHY")
    extra = [(_labels(one), pairs(one.facts), one.last_close or "-") for one in found]
    wide = [(*row[:4], *more, row[4]) for row, more in zip(rows, extra, strict=True)]
    return View(
        [one.id for one in found],
        {"agents": msgspec.to_builtins(found)},
        table(head, rows),
        table((*head[:4], "LABELS", "FACTS", "LAST CLOSE", "WHY"), wide),
    )


def _labels(one: Agent) -> str:
    return f"lost {one.labels_lost}" if one.labels_lost else pairs(one.labels)


def _detailed(one: AgentDetail) -> View:
    import msgspec

    rows = [("agent", one.id), ("state", one.state), ("node", one.node or "-"), ("since", one.since or "-")]
    if one.why:
        rows.append(("why", one.why))
    rows += [("labels", _labels(one)), ("facts", pairs(one.facts))]
    rows.append(("commands", f"{len(one.open_commands)} open"))
    link = [("link", f"{one.link.sid}, attempt {one.link.conn} of boot {one.link.boot}")]
    if one.last_close:
        told = one.last_reason and one.last_reason not in one.last_close
        link.append(("last close", f"{one.last_close}{f': {one.last_reason}' if told else ''}"))
    if one.recent_failures:
        link.append(("last error", f"{one.recent_failures[0].at} {one.recent_failures[0].what}"))
    link += [("open", command) for command in one.open_commands]
    short, wide = (["  ".join((key.ljust(10), value)) for key, value in part] for part in (rows, rows + link))
    return View([one.id], msgspec.to_builtins(one), short, wide)
