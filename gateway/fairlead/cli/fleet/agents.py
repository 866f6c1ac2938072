"""`fairlead agents`: lists agents, shows one, labels them, closes their links, and removes agents that have left.

Every command here asks the platform API. `why` explains in words why an agent is not online.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.completion import complete_agent
from fairlead.cli.output.formats import View, format_close, output_option, render
from fairlead.cli.output.table import format_pairs, format_table
from fairlead.cli.output.watch import print_view, watch_option

if TYPE_CHECKING:
    from fairlead.client import Agent, AgentDetail, Client, FactChange, PendingAgentInfo


@click.group(cls=Group)
def agents() -> None:
    """List, label, disconnect and remove agents."""


@agents.command("ls", short_help="List agents.")
@api_options
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Match labels and facts: 'env in (prod,dev),!retired'."
)
@click.option("--state", type=click.Choice(["online", "away", "offline"]), help="Only agents in this state.")
@click.option("--count", "only_count", is_flag=True, help="Print only how many there are.")
@output_option
@watch_option
def ls(
    api: str, token: str | None, selector: str, state: str | None, only_count: bool, output: str, watch: bool
) -> None:
    """List all known agents, or those that match a selector, sorted by id."""
    if only_count:
        click.echo(call_api(api, token, lambda client: client.count_agents(selector, state or "")))
        return

    async def fetch(client: Client) -> View:
        found = [one async for one in client.agents(selector, state or "")]
        return _list_view(sorted(found, key=lambda one: one.id))

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names and (selector or state):
        click.echo("no agents match; `fairlead agents ls` lists all agents", err=True)
    elif not view.names:
        click.echo("there are no agents yet; start one: fairlead agent run --id agent-1", err=True)


@agents.command("get", short_help="Show one agent.")
@api_options
@output_option
@watch_option
@click.argument("agent_id", metavar="AGENT", shell_complete=complete_agent)
def get(api: str, token: str | None, agent_id: str, output: str, watch: bool) -> None:
    """Show one agent: its link, labels and facts, and its open commands."""

    async def fetch(client: Client) -> View:
        return _detail_view(await client.agent(agent_id))

    call_api(api, token, lambda client: print_view(client, fetch, output, watch))


@agents.command("label", short_help="Set or remove labels of an agent.")
@api_options
@output_option
@click.argument("agent_id", metavar="AGENT", shell_complete=complete_agent)
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
def label(api: str, token: str | None, agent_id: str, changes: tuple[str, ...], output: str) -> None:
    """Set or remove labels of an agent: fairlead agents label web-1 env=prod old-

    Prints all labels that the agent has afterwards.
    """
    wanted: dict[str, str | None] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if sign and not value:
            raise click.BadParameter(
                f"{change!r} has no value: {key}=VALUE, or {key}- removes it", param_hint="KEY=VALUE"
            )
        elif sign:
            wanted[key] = value
        elif change.endswith("-"):
            wanted[change[:-1]] = None
        else:
            raise click.BadParameter(f"{change!r}: expected KEY=VALUE or KEY-", param_hint="KEY=VALUE")
    labels = call_api(api, token, lambda client: client.label(agent_id, wanted))
    lines = [f"{key}={value}" for key, value in sorted(labels.items())]
    click.echo(render(View([agent_id], {"id": agent_id, "labels": labels}, lines, lines), output), nl=False)


@agents.command("disconnect", short_help="Close the link of an agent.")
@api_options
@click.argument("agent_id", metavar="AGENT", shell_complete=complete_agent)
def disconnect(api: str, token: str | None, agent_id: str) -> None:
    """Close the link of an agent. The agent connects again, and its programs go on running."""
    call_api(api, token, lambda client: client.disconnect(agent_id))
    click.echo(f"closed the link of {agent_id}; `fairlead agents get {agent_id} -w` shows its next one", err=True)


@agents.command("release", short_help="Release the id of an agent from its key.")
@api_options
@click.argument("agent_id", metavar="AGENT", shell_complete=complete_agent)
def release(api: str, token: str | None, agent_id: str) -> None:
    """Release the id of an agent from its key, so that another key may enrol with it.

    Do so when a machine was installed anew or replaced. Its old credential renews no more, and opens no new link.
    """
    call_api(api, token, lambda client: client.agent_keys.release(agent_id))
    click.echo(f"released {agent_id}; the next key that enrols with this id has it", err=True)


@agents.command("revoke", short_help="Revoke the key of an agent.")
@api_options
@click.argument("agent_id", metavar="AGENT", shell_complete=complete_agent)
def revoke(api: str, token: str | None, agent_id: str) -> None:
    """Revoke the key of an agent: its link is closed within 5 seconds, and its key opens none any more.

    Do so when a machine was stolen or broken into. Nobody enrols with the id until `fairlead agents release`.
    """
    key = call_api(api, token, lambda client: client.agent_keys.revoke(agent_id))
    click.echo(
        f"revoked the key {key} of {agent_id}; `fairlead agents release {agent_id}` lets another key enrol", err=True
    )


@agents.command("pending", short_help="List agents that wait for an approval.")
@api_options
@output_option
@watch_option
def pending(api: str, token: str | None, output: str, watch: bool) -> None:
    """List the agents that want to enrol and wait for an approval, with the thumbprints of their keys.

    An agent logs the thumbprint of its own key: compare them before you approve.
    """

    async def fetch(client: Client) -> View:
        return _pending_view(await client.pending_agents.list())

    view = call_api(api, token, lambda client: print_view(client, fetch, output, watch))
    if not view.names:
        click.echo("no agent waits for an approval", err=True)


@agents.command("approve", short_help="Approve the enrolment of an agent.")
@api_options
@click.option("--key", metavar="THUMBPRINT", help="The key to approve; needed if several wait for this id.")
@click.argument("agent_id", metavar="AGENT")
def approve(api: str, token: str | None, key: str | None, agent_id: str) -> None:
    """Approve the enrolment of an agent that waits: it gets its credential when it asks again, within half a minute."""
    shown = _decide(api, token, agent_id, key, approved=True)
    click.echo(f"approved {agent_id} with the key {shown.key}", err=True)


@agents.command("deny", short_help="Deny the enrolment of an agent.")
@api_options
@click.option("--key", metavar="THUMBPRINT", help="The key to deny; needed if several wait for this id.")
@click.argument("agent_id", metavar="AGENT")
def deny(api: str, token: str | None, key: str | None, agent_id: str) -> None:
    """Deny the enrolment of an agent that waits. Its key is refused for a day; another key may ask for the id."""
    shown = _decide(api, token, agent_id, key, approved=False)
    click.echo(f"denied {agent_id} with the key {shown.key}", err=True)


def _decide(api: str, token: str | None, agent: str, key: str | None, *, approved: bool) -> PendingAgentInfo:
    """Approve or deny the only agent that waits for this id, with this key if one is named. Raises UsageError if there
    is not exactly one."""

    async def work(client: Client) -> PendingAgentInfo:
        waiting = [one for one in await client.pending_agents.list() if one.agent == agent and key in (None, one.key)]
        if not waiting:
            with_key = f" with the key {key}" if key else ""
            raise click.UsageError(
                f"no agent {agent!r}{with_key} waits for an approval: `fairlead agents pending` lists all"
            )
        if len(waiting) > 1:
            keys = ", ".join(one.key for one in waiting)
            raise click.UsageError(f"{len(waiting)} keys wait for {agent!r}: name one with --key: {keys}")
        await (client.pending_agents.approve(waiting[0]) if approved else client.pending_agents.deny(waiting[0]))
        return waiting[0]

    return call_api(api, token, work)


@agents.command("rm", short_help="Remove agents that have left.")
@api_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.argument("agent_ids", metavar="AGENT...", nargs=-1, required=True, shell_complete=complete_agent)
@click.pass_context
def rm(ctx: click.Context, api: str, token: str | None, yes: bool, agent_ids: tuple[str, ...]) -> None:
    """Remove agents that have left: fairlead agents rm web-1 web-2

    Removes their labels, facts and events, and ends the commands that wait for them. An agent that is online is not
    removed; one that connects again later is a new agent.
    """
    from fairlead.errors import AgentOnline, AgentUnknown

    names = tuple(dict.fromkeys(agent_ids))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("cannot ask for confirmation, because stdin is not a terminal: add --yes to skip it")
        what = names[0] if len(names) == 1 else f"{len(names)} agents ({', '.join(names[:5])}{'…' * (len(names) > 5)})"
        click.confirm(f"Remove {what} with all labels, facts and events?", abort=True, err=True)

    async def remove(client: Client) -> int:
        """Returns how many were not removed."""
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
                click.echo(f"removed {name}: {done.commands} open commands ended, {done.events} events deleted")
        return left

    ctx.exit(exit_codes.FAILED if call_api(api, token, remove) else exit_codes.OK)


def _pending_view(found: list[PendingAgentInfo]) -> View:
    import msgspec

    rows = [(one.agent, one.key, one.state, one.address or "-", one.token, one.first, one.last) for one in found]
    head = ("AGENT", "KEY", "STATE", "ADDRESS", "TOKEN", "FIRST", "LAST")
    lines = format_table(head, rows)
    return View([one.agent for one in found], {"agents": msgspec.to_builtins(found)}, lines, lines)


def _list_view(found: list[Agent]) -> View:
    import msgspec

    rows = [(one.id, one.state, one.node or "-", one.since or "-", _why(one)) for one in found]
    head = ("AGENT", "STATE", "NODE", "SINCE", "WHY")
    extra = [(_labels(one), format_pairs(one.facts), one.last_close or "-") for one in found]
    wide = [(*row[:4], *more, row[4]) for row, more in zip(rows, extra, strict=True)]
    return View(
        [one.id for one in found],
        {"agents": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head[:4], "LABELS", "FACTS", "LAST CLOSE", "WHY"), wide),
    )


def _why(one: Agent) -> str:
    """Why it is not online, and whether two copies use its key."""
    return "; ".join(filter(None, (one.why, one.cloned and f"cloned: two copies used its key at {one.cloned}")))


def _labels(one: Agent) -> str:
    return f"lost {one.labels_lost}" if one.labels_lost else format_pairs(one.labels)


def _changes(change: FactChange) -> str:
    said = [f"{key}: {fact.before or '-'} -> {fact.after or '-'}" for key, fact in sorted(change.facts.items())]
    return ", ".join([*said, *([f"and {change.more} more"] if change.more else [])])


def _detail_view(one: AgentDetail) -> View:
    import msgspec

    rows = [("agent", one.id), ("state", one.state), ("node", one.node or "-"), ("since", one.since or "-")]
    if why := _why(one):
        rows.append(("why", why))
    rows += [("labels", _labels(one)), ("facts", format_pairs(one.facts))]
    rows.append(("commands", f"{len(one.open_commands)} open"))
    link = [("link", f"{one.link.sid}, attempt {one.link.conn} of boot {one.link.boot}")]
    if closed := format_close(one.last_close, one.last_reason):
        link.append(("last close", closed))
    if one.recent_failures:
        link.append(("last error", f"{one.recent_failures[0].at} {one.recent_failures[0].message}"))
    link += [("changed", f"{change.at} {_changes(change)}") for change in one.fact_changes]
    link += [("open", command) for command in one.open_commands]
    short, wide = (["  ".join((key.ljust(10), value)) for key, value in part] for part in (rows, rows + link))
    return View([one.id], msgspec.to_builtins(one), short, wide)
