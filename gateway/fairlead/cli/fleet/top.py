"""`fairlead top`: the worst links of the fleet, ranked by their nodes and refreshed until the user leaves.

On a terminal the table stays in place and keys choose the measure; a pipe receives it once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import IntegerRange, NumberRange
from fairlead.cli.output.formats import as_json, report_option
from fairlead.cli.output.table import UNLIMITED, format_table
from fairlead.cli.output.watch import CLEAR
from fairlead.text import plain

if TYPE_CHECKING:
    import asyncio

    from fairlead.client import Client, Latency, RankedLink, Ranking

MEASURES = ("rtt", "deliver", "ack", "first_byte", "run", "store", "open", "failed", "reconnects")
"""What the API ranks by; the keys 1 to 9 choose one."""
HEAD = (
    "AGENT", "NODE", "AGE", "RTT", "P50", "P99", "DELIVER", "ACK", "FIRST", "RUN", "STORE", "OPEN", "ENDED", "FAILED",
    "RECONN", "LAST CLOSE",
)  # fmt: skip
NUMERIC = range(2, len(HEAD) - 1)
"""The columns of HEAD that are numbers."""
AROUND = 4
"""Lines of the terminal besides those of the links: the measures, the head, missing nodes, the cursor."""


@click.command(short_help="Show the worst links of the fleet.")
@api_options
@click.option("--by", type=click.Choice(MEASURES), default="rtt", show_default=True, help="Measure to rank by.")
@click.option(
    "-n",
    "--limit",
    type=IntegerRange(1, 100),
    metavar="N",
    help="Number of links. [default: as many as the terminal has lines for]",
)
@click.option(
    "--interval",
    type=NumberRange(1, 3600),
    default=2,
    show_default=True,
    metavar="SECONDS",
    help="Time between two refreshes.",
)
@click.option("--once", is_flag=True, help="Print the table once; the default if stdout is not a terminal.")
@report_option
def top(api: str, token: str | None, by: str, limit: int | None, interval: float, once: bool, output: str) -> None:
    """Show the links of the fleet that are slowest, or worst by another measure.

    RTT is the last round trip, P50 and P99 are quantiles of the latest ones. The stages of commands are p99, in
    milliseconds. Keys: 1 to 9 choose the measure, q quits.
    """
    if once or output == "json" or not sys.stdout.isatty():
        found = call_api(api, token, lambda client: client.worst(by, limit or 20))
        if output == "json":
            import msgspec

            click.echo(as_json(msgspec.to_builtins(found)))
        else:
            _print(found)
        return
    call_api(api, token, lambda client: _watch(client, by, limit, interval))


async def _watch(client: Client, by: str, limit: int | None, interval: float) -> None:
    import asyncio

    with _pressed_keys() as keys:
        while True:
            size = shutil.get_terminal_size()
            found = await client.worst(by, min(limit or 100, max(1, size.lines - AROUND), 100))
            click.echo(CLEAR, nl=False)
            measures = " ".join(f"[{m}]" if m == by else f"{i}:{m}" for i, m in enumerate(MEASURES, 1))
            click.echo(f"{measures}   q: quit"[: size.columns])
            _print(found, size.columns)
            try:
                async with asyncio.timeout(interval):
                    key = await keys.get()
            except TimeoutError:
                continue
            if key == "q":
                return
            if key.isdigit() and 1 <= int(key) <= len(MEASURES):
                by = MEASURES[int(key) - 1]


@contextmanager
def _pressed_keys() -> Iterator[asyncio.Queue[str]]:
    """The keys that are pressed while the block lasts. The queue has room for the keys that a person presses in one
    interval.
    """
    import asyncio
    import os
    import termios
    import tty

    keys: asyncio.Queue[str] = asyncio.Queue(16)
    if not sys.stdin.isatty():
        yield keys
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def read_keys() -> None:
        for key in os.read(file, 16).decode(errors="replace"):
            if not keys.full():
                keys.put_nowait(key)

    tty.setcbreak(file)
    loop.add_reader(file, read_keys)
    try:
        yield keys
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _print(found: Ranking, columns: int | None = None) -> None:
    # Cut at the right edge and do not shorten cells: a shortened number would be wrong.
    for line in format_table(HEAD, [_row(one) for one in found.links], NUMERIC, UNLIMITED):
        click.echo(line[:columns])
    if found.missing:
        click.echo(f"no answer in time from: {plain(', '.join(found.missing))}", err=True)
    if not found.links and not found.missing:
        click.echo("no agent is linked; `fairlead agents ls` lists all known agents", err=True)


def _row(one: RankedLink) -> tuple[str, ...]:
    return (
        one.agent, one.node, _age(one.age), _ms(one.rtt), *_p50_p99(one.round_trips),
        *(_p99(one.latency.get(stage)) for stage in MEASURES[1:6]), str(one.commands), str(one.ended),
        str(one.failed), str(one.reconnects), one.last_close or "-",
    )  # fmt: skip


def _p50_p99(spread: Latency | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (_ms(spread.p50), _ms(spread.p99))


def _p99(spread: Latency | None) -> str:
    return _ms(None if spread is None else spread.p99)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}" if seconds < 1 else f"{seconds * 1000:.0f}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
