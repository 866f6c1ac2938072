"""`fairlead swarm`: loads a gateway with thousands of simulated agents, to find out how large it must be.

This module reads the options, checks that this machine can do what they request, and prints; the package `swarm` does
the work. Progress goes to stderr, the result to stdout. The exit code is 1 if an agent was lost.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from fairlead.cli.click_extensions import IntegerRange, NumberRange
from fairlead.cli.link_options import DEFAULT_LINKS, agent_token_options, chosen_token, endpoint, host_of
from fairlead.cli.output.formats import report_option
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.swarm.counters import Counters

QUIET = 5.0
"""Seconds between two lines of progress when stderr is not a terminal."""


@click.command(
    short_help="Load a gateway with simulated agents.",
    epilog="Profiles, alone or in shares (idle=90,chatty=10): idle; chatty, with more output and with events; slow, "
    "which reads a little at a time; half-open, which is silent after the welcome but keeps its connection; storm, "
    "whose agents all drop their links at once and reconnect with the protocol's delays. See docs/swarm.md.",
)
@click.option("--url", default=DEFAULT_LINKS, show_default=True, metavar="URL", help="URL of the gateway's links.")
@click.option(
    "--agents", "-n", type=IntegerRange(1, 10_000_000), default=100, show_default=True, help="Number of agents."
)
@click.option("--processes", "-p", type=IntegerRange(1, 1024), help="Number of processes. [default: as many as needed]")
@click.option(
    "--rate", type=NumberRange(0.1, 1e6), default=200.0, show_default=True,
    help="Agents that connect per second, with a jitter of one half.",
)  # fmt: skip
@click.option("--profile", default="idle", show_default=True, metavar="MIX", help="Behaviour of the agents; see below.")
@click.option(
    "--duration", type=NumberRange(min=0), metavar="SECONDS",
    help="How long to hold the links once all are open. [default: until Ctrl-C]",
)  # fmt: skip
@agent_token_options("--token")
@click.option("--id-prefix", default="swarm", show_default=True, metavar="PREFIX", help="Ids are PREFIX-0, PREFIX-1 …")
@click.option(
    "--source", multiple=True, metavar="ADDRESSES",
    help="Local addresses to connect from, in turn: each has some 28,000 ports. 127.0.0.2-9 is a range.",
)  # fmt: skip
@click.option(
    "--output-bytes", type=IntegerRange(0, 1 << 30), metavar="N",
    help="Size of each command's output. [default: 64, chatty 4096]",
)  # fmt: skip
@click.option(
    "--event-every", type=NumberRange(0.01, 86400), default=10.0, show_default=True, metavar="SECONDS",
    help="Time between two events of a chatty agent.",
)  # fmt: skip
@click.option(
    "--in-progress", type=IntegerRange(1, 10_000_000), metavar="N",
    help="Attempts between connect and welcome at once, at most. [default: 256 a process, 2048 in all]",
)  # fmt: skip
@click.option(
    "--storm-every", type=NumberRange(1, 86400), default=60.0, show_default=True, metavar="SECONDS",
    help="Time between two storms; the first is when all links are open.",
)  # fmt: skip
@report_option
@click.pass_context
def swarm(
    ctx: click.Context, url: str, agents: int, processes: int | None, rate: float, profile: str,
    duration: float | None, agent_token: str | None, agent_token_file: Path | None, id_prefix: str,
    source: tuple[str, ...], output_bytes: int | None, event_every: float, in_progress: int | None, storm_every: float,
    output: str,
) -> None:  # fmt: skip
    """Load a gateway with simulated agents, and count what happens to them."""
    import asyncio

    from fairlead.swarm.coordinator import Coordinator
    from fairlead.swarm.options import SwarmOptions, parse_sources
    from fairlead.swarm.profile import parse_mix
    from fairlead.swarm.report import as_json, as_table
    from fairlead.swarm.system import check_open_files, check_ports, needed_processes
    from fairlead.wire.ids import check_agent_id

    check_agent_id(f"{id_prefix}-{agents - 1}")
    address = _address(url)
    options = SwarmOptions(
        url=address,
        token=chosen_token(url, agent_token, agent_token_file, "--token"),
        agents=agents,
        processes=min(agents, processes or needed_processes(agents)),
        rate=rate,
        mix={one.value: share for one, share in parse_mix(profile).items()},
        prefix=id_prefix,
        sources=parse_sources(source),
        output=64 if output_bytes is None else output_bytes,
        chatty_output=4096 if output_bytes is None else output_bytes,
        event_every=event_every,
        in_progress=in_progress or 0,
    )
    check_open_files(options.agents, options.processes)
    if advice := check_ports(options.agents, options.sources, secure=address.startswith("wss:")):
        click.echo(f"fairlead: {advice}", err=True)
    progress = _Progress(agents)
    coordinator = Coordinator(options, duration=duration, storm_every=storm_every, progress=progress.show)
    try:
        result = asyncio.run(coordinator.run())
    finally:
        progress.end()
    if output == "json":
        click.echo(json.dumps(as_json(result), indent=2))
    else:  # the last refusal is quoted from the gateway
        click.echo("\n".join(map(plain, as_table(result).split("\n"))))
    ctx.exit(0 if result.ok else 1)


def _address(url: str) -> str:
    try:
        legal = urlsplit(url).scheme in ("ws", "wss") and host_of(url) and urlsplit(url).port != 0
    except ValueError:
        legal = False
    if not legal:
        raise click.BadParameter(f"{url!r}: expected ws://HOST or wss://HOST", param_hint="--url")
    return endpoint(url)


class _Progress:
    """One line that is rewritten on a terminal, or a line now and then."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._shown = float("-inf")

    def show(self, phase: str, counters: Counters, seconds: float) -> None:
        from fairlead.swarm.report import progress_line

        line = plain(progress_line(phase, counters, self._agents, seconds))
        if self._terminal:
            # The last line of a phase stays, the others are overwritten.
            head = "\n" if self._phase not in ("", phase) else "\r"
            click.echo(f"{head}{line}\x1b[K", err=True, nl=False)
        elif phase != self._phase or seconds - self._shown >= QUIET:
            click.echo(line, err=True)
            self._shown = seconds
        self._phase = phase

    def end(self) -> None:
        if self._terminal and self._phase:
            click.echo(err=True)
