"""`fairlead top`: the worst links of the fleet, ranked by their nodes, looked at again and again.

Called by `main`. On a terminal the table stays in place and keys choose what it is ranked by; into a pipe it is
written once. What comes from agents is made plain for the terminal.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.click_extensions import IntegerRange, NumberRange
from fairlead.cli.output.view import as_json, report_option
from fairlead.text import plain

if TYPE_CHECKING:
    import asyncio

    from fairlead.client import Client, Latency, RankedLink, Ranking

MEASURES = ("rtt", "deliver", "ack", "first_byte", "run", "store", "open", "failed", "reconnects")
"""What the API ranks by; the keys 1 to 9."""
HEAD = (
    "AGENT", "NODE", "AGE", "RTT", "P50", "P99", "DELIVER", "ACK", "FIRST", "RUN", "STORE", "OPEN", "ENDED", "FAILED",
    "RECONN", "LAST CLOSE",
)  # fmt: skip


@click.command(short_help="Show the worst links of the fleet.")
@api_options
@click.option("--by", type=click.Choice(MEASURES), default="rtt", show_default=True, help="What makes a link bad.")
@click.option(
    "-n",
    "--limit",
    type=IntegerRange(1, 100),
    metavar="N",
    help="How many. [default: what the terminal has room for]",
)
@click.option(
    "--interval",
    type=NumberRange(1, 3600),
    default=2,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Look once; into a pipe that is done anyway.")
@report_option
def top(api: str, token: str | None, by: str, limit: int | None, interval: float, once: bool, output: str) -> None:
    """Show the slowest links of the fleet, or those that are worst in another way.

    RTT is the last round trip, P50 and P99 are of the latest; the stages of commands are p99, in milliseconds. Keys:
    1 to 9 choose the measure, q ends.
    """
    if once or output == "json" or not sys.stdout.isatty():
        found = ask(api, token, lambda client: client.worst(by, limit or 20))
        if output == "json":
            import msgspec

            click.echo(as_json(msgspec.to_builtins(found)))
        else:
            _print(found)
        return
    ask(api, token, lambda client: _watch(client, by, limit, interval))


async def _watch(client: Client, by: str, limit: int | None, interval: float) -> None:
    import asyncio

    with _keys() as keys:
        while True:
            room = shutil.get_terminal_size()
            found = await client.worst(by, min(limit or 100, max(1, room.lines - 4), 100))
            click.echo("\x1b[H\x1b[2J", nl=False)  # home, clear: the table stays in place
            chosen = " ".join(f"[{m}]" if m == by else f"{i}:{m}" for i, m in enumerate(MEASURES, 1))
            click.echo(f"{chosen}   q: end"[: room.columns])
            _print(found, room.columns)
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
def _keys() -> Iterator[asyncio.Queue[str]]:
    """Keys as they are pressed, while the block lasts. The queue holds what a hand can press between two looks."""
    import asyncio
    import termios
    import tty

    keys: asyncio.Queue[str] = asyncio.Queue(16)
    if not sys.stdin.isatty():
        yield keys
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed() -> None:
        import os

        for key in os.read(file, 16).decode(errors="replace"):
            if not keys.full():
                keys.put_nowait(key)

    tty.setcbreak(file)
    loop.add_reader(file, pressed)
    try:
        yield keys
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _print(found: Ranking, width: int | None = None) -> None:
    rows = [HEAD, *map(_row, found.links)]
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        # Numbers to the right, words to the left.
        line = "  ".join(
            cell.ljust(size) if i in (0, 1, len(HEAD) - 1) else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        click.echo(line.rstrip()[:width])
    if found.missing:
        click.echo(f"did not answer in time: {plain(', '.join(found.missing))}", err=True)
    if not found.links and not found.missing:
        click.echo("no agent is linked; `fairlead agents ls` lists all that were ever seen", err=True)


def _row(one: RankedLink) -> tuple[str, ...]:
    return (
        one.agent, one.node, _age(one.age), _ms(one.rtt), *_both(one.round_trips),
        *(_stage(one.latency.get(stage)) for stage in MEASURES[1:6]), str(one.commands), str(one.ended),
        str(one.failed), str(one.reconnects), one.last_close or "-",
    )  # fmt: skip


def _both(spread: Latency | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (_ms(spread.p50), _ms(spread.p99))


def _stage(spread: Latency | None) -> str:
    return _ms(None if spread is None else spread.p99)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}" if seconds < 1 else f"{seconds * 1000:.0f}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
