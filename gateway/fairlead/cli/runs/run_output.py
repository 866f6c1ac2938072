"""Follows one run until it ends: shows its progress, and what the agents returned.

Used by `run`. What the agents returned goes to stdout: each output once, with how many agents returned it. Progress and
messages go to stderr; on a terminal the progress is one line that is written over. The first Ctrl-C cancels the run and
waits for its end, because a run goes on when it is merely no longer followed. The second one exits at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import click
import msgspec

from fairlead.cli import exit_codes
from fairlead.cli.output.formats import View
from fairlead.cli.output.table import format_table
from fairlead.cli.terminal.attach import cancel_tasks, interrupts
from fairlead.cli.terminal.results import REPLAYED, notify
from fairlead.client import Client, EndedTarget, FollowedRun, ListedRun, RunProgress
from fairlead.errors import FairleadError, InvalidRequest
from fairlead.text import plain

END_TIMEOUT: Final = 30.0
"""Seconds to wait for the end of a run after its cancel: the agents have 10 s."""
EVERY: Final = 2.0
"""Seconds between two lines of progress, if stderr is no terminal."""
ORDER: Final = (
    "ok", "failed", "timeout", "offline", "expired", "cancelled", "skipped", "not_started", "started", "queued",
    "waiting",
)  # fmt: skip
WORDS: Final = {"not_started": "not started", "started": "under way"}
FIRST: Final = 5
"""Agents that a group names."""
GROUPS: Final = 200
SHOWN: Final = 16 << 10
"""Characters of an output that are printed."""


@dataclass
class _Group:
    """Targets that ended in the same way with the same output; `sample` is the first."""

    sample: EndedTarget
    agents: list[str] = field(default_factory=list)
    count: int = 0


async def begin_and_follow(
    client: Client, method: str, payload: object, agents: list[str] | None, selector: str, pace: Mapping[str, object],
    output: str, *, detach: bool,
) -> int:  # fmt: skip
    run = await client.runs.begin(method, payload, agents=agents, selector=selector, pace=pace)
    return await follow_begun(client, run, output, detach=detach)


async def follow_begun(client: Client, run: FollowedRun, output: str, *, detach: bool) -> int:
    """Follow a run that has just begun, or only print its id; returns the exit code."""
    if run.replayed:
        notify(f"run {run.id} {REPLAYED}")
    if run.undecided:
        notify(f"{run.undecided} agents are left out, for their labels were lost: set them again")
    if detach:
        click.echo(run.id)
        return exit_codes.OK
    notify(f"run {run.id} on {_agents(run.targets)}")
    return await follow(client, run, output, True)


async def preview(client: Client, method: str, agents: list[str] | None, selector: str, output: str) -> int:
    """Print the agents that would be targets."""
    found = await client.runs.preview(method, agents=agents, selector=selector)
    if output == "json":
        click.echo(msgspec.json.encode(found).decode())
    else:
        for agent in sorted(found.agents):
            click.echo(agent)
    left_out = f"; {found.undecided} are left out, for their labels were lost" if found.undecided else ""
    if not found.targets:
        notify(f"no agent would be a target{left_out}: `fairlead agents ls` lists all agents")
    else:
        notify(f"{_agents(found.targets)} would be targets{left_out}")
    return exit_codes.OK


async def confirmed(client: Client, method: str, selector: str, *, yes: bool) -> list[str]:
    """The agents for which a run is about to be signed: all that match, if the user agrees. It is the gateway that says
    who matches, and a signature must not be for agents that only a captured gateway has chosen."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask whom to sign for, because stdin is not a terminal: add --yes to sign for all agents that the "
            "gateway finds, or name them with --agents"
        )
    found = await client.runs.preview(method, selector=selector)
    if not found.agents:
        raise InvalidRequest("no agent matches the selector, or none that you may see", field="selector")
    if not yes:
        more = ", …" if found.targets > FIRST else ""
        who = f"{found.targets} agents ({', '.join(found.agents[:FIRST])}{more})"
        click.confirm(f"Sign {plain(method)} for {who}?", abort=True, err=True)
    return found.agents


async def follow(client: Client, run: FollowedRun, output: str, cancels: bool) -> int:
    """Print the results of a run as they come; returns the exit code. `cancels`: Ctrl-C cancels the run."""
    view = _View(run, output)
    with interrupts() as (first, second):
        following = asyncio.create_task(view.follow())
        try:
            await asyncio.wait([following, first], return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                if not cancels:
                    return exit_codes.INTERRUPTED
                notify("cancelling the run; press Ctrl-C again to exit at once")
                await _cancel(client, run.id)
                await asyncio.wait([following, second], timeout=END_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                notify(f"left; `fairlead runs show {run.id}` shows the run")
                return exit_codes.INTERRUPTED
            following.result()
        finally:
            await cancel_tasks(following)
    return await view.end(client)


async def show_run(client: Client, run_id: str, output: str) -> None:
    """Print the state of a run."""
    status = await client.runs.get(run_id)
    if output == "json":
        click.echo(msgspec.json.encode(status).decode())
        return
    where = f" on {status.node}" if status.node else ""
    click.echo(f"{status.id}  {plain(status.method)}  {status.state}{where}")
    if status.reason:
        click.echo(plain(status.reason))
    click.echo(describe(status.counts, status.targets))
    for one in status.outcomes:
        code = f" ({plain(one.code)})" if one.code else ""
        digest = f"  output {one.digest[:12]}" if one.digest else ""
        click.echo(f"{one.count:>7} {WORDS.get(one.state, one.state)}{code}{digest}  {', '.join(one.agents)}"
                   f"{' …' if one.count > len(one.agents) else ''}")  # fmt: skip


async def list_view(client: Client, state: str | None, limit: int) -> View:
    """The newest runs."""
    found: list[ListedRun] = []
    async with aclosing(client.runs.list(state=state)) as listed:
        async for one in listed:
            found.append(one)
            if len(found) == limit:
                break
    rows = [
        (one.id, one.state, plain(one.method), describe(one.counts, one.targets), one.created or "") for one in found
    ]
    wide = [(*row, one.ended or "", plain(one.subject), plain(one.selector or ""))
            for row, one in zip(rows, found, strict=True)]  # fmt: skip
    head = ("RUN", "STATE", "METHOD", "TARGETS", "CREATED")
    return View(
        [one.id for one in found],
        {"runs": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "ENDED", "SUBJECT", "SELECTOR"), wide),
    )


async def ask_for(client: Client, run_id: str, wish: str) -> None:
    status = await client.runs.ask(run_id, cast("Literal['pause', 'resume', 'cancel']", wish))
    if status.ended:
        notify(f"the run had already ended: {status.state}")
    else:
        notify(f"asked to {wish} the run, which is {status.state}; `fairlead runs show {status.id}` shows it")


async def _cancel(client: Client, run_id: str) -> None:
    try:
        await client.runs.ask(run_id, "cancel")
    except FairleadError as e:
        notify(f"the cancel failed: {e.message}; try `fairlead runs cancel {run_id}`")


def describe(counts: Mapping[str, int], targets: int) -> str:
    """The counts in words: `120 of 1000: 118 ok, 2 failed, 50 under way, 830 waiting`."""
    over = sum(count for state, count in counts.items() if state not in ("waiting", "started", "queued"))
    parts = [f"{counts[state]} {WORDS.get(state, state)}" for state in ORDER if counts.get(state)]
    return f"{over} of {targets}: {', '.join(parts)}"


class _View:
    def __init__(self, run: FollowedRun, output: str) -> None:
        self._run = run
        self._json = output == "json"
        self._groups: dict[tuple[str, str | None, str | None], _Group] = {}
        self._terminal = sys.stderr.isatty()
        self._told = time.monotonic()
        self._said = ""

    async def follow(self) -> None:
        async for one in self._run.follow():
            if isinstance(one, RunProgress):
                self._progress(one)
            elif self._json:
                click.echo(msgspec.json.encode(one).decode())
            else:
                self._add(one)

    async def end(self, client: Client) -> int:
        """Print what is left; returns the exit code."""
        end = self._run.end
        assert end is not None, "a followed run ends with an end or an error"
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self._json:
            click.echo(msgspec.json.encode({"id": self._run.id, "end": end}).decode())
        for group in sorted(self._groups.values(), key=lambda group: -group.count):
            _print_group(group)
        targets = sum(end.counts.values())
        reason = (await client.runs.get(self._run.id)).reason if end.state in ("aborted", "expired") else ""
        notify(f"{end.state}: {describe(end.counts, targets)}{f': {reason}' if reason else ''}")
        return run_exit_code(end)

    def _add(self, one: EndedTarget) -> None:
        key = one.state, one.code, one.digest
        if key not in self._groups and len(self._groups) >= GROUPS:
            key = one.state, None, None
        group = self._groups.setdefault(key, _Group(one))
        group.count += 1
        if len(group.agents) < FIRST:
            group.agents.append(one.agent)

    def _progress(self, progress: RunProgress) -> None:
        text = describe(progress.counts, sum(progress.counts.values()))
        if progress.state != "running":
            text += f" ({progress.state})"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif text != self._said and time.monotonic() - self._told >= EVERY:
            self._told, self._said = time.monotonic(), text
            notify(text)


def _print_group(group: _Group) -> None:
    one = group.sample
    who = ", ".join(group.agents) + (" …" if group.count > len(group.agents) else "")
    what = WORDS.get(one.state, one.state) + (f" ({one.code})" if one.code else "")
    click.echo(plain(f"== {group.count} {'agent' if group.count == 1 else 'agents'} {what}: {who}"))
    if one.error is not None and one.error.message:
        click.echo(plain(one.error.message))
    for part in one.output:
        text = part.get("text")
        shown = text if text is not None else f"({len(part.get('base64', '')) * 3 // 4} bytes)"
        click.echo("\n".join(map(plain, shown[:SHOWN].rstrip("\n").split("\n"))))
    if one.payload not in (None, {}) and not one.output:
        click.echo(plain(json.dumps(one.payload, ensure_ascii=False)[:SHOWN]))
    if one.dropped:
        click.echo("… the gateway has dropped the output after the end, to make room for others")
    elif one.truncated:
        click.echo(f"… the rest: fairlead results {one.command}")


def run_exit_code(end: RunProgress) -> int:
    """The exit code of a run: that of the worst that happened to a target or to the run."""
    counts = end.counts
    if end.state == "cancelled":
        return exit_codes.INTERRUPTED
    if counts.get("failed") or counts.get("cancelled") or end.state == "aborted":
        return exit_codes.FAILED
    if counts.get("timeout") or counts.get("expired") or end.state == "expired":
        return exit_codes.DEADLINE
    return exit_codes.UNAVAILABLE if counts.get("offline") else exit_codes.OK


def _agents(count: int) -> str:
    return f"{count} agent{'' if count == 1 else 's'}"
