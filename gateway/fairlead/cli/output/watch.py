"""--watch: an answer that is printed again whenever it changes, until Ctrl-C.

Used by the commands that show something. A terminal is redrawn; a pipe receives only the lines that have changed, or a
document for each change with JSON and YAML. An outage of the gateway is reported once and waited for.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from fairlead.cli.output.formats import View, render
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import Client

F = TypeVar("F", bound=Callable[..., object])
Fetch = Callable[["Client"], Awaitable[View]]

PERIOD = 2.0
"""Seconds between two requests: people do not read what changes faster."""
CLEAR = "\x1b[H\x1b[2J"
"""Moves the cursor home and clears the screen (ECMA-48)."""


def watch_option(command: F) -> F:
    return click.option("-w", "--watch", is_flag=True, help="Print the answer again when it changes, until Ctrl-C.")(
        command
    )


async def print_view(client: Client, fetch: Fetch, form: str, watch: bool) -> View:
    """Print what `fetch` returns, and return it; with `watch`, print each change and never return."""
    view = await fetch(client)
    if not watch:
        click.echo(render(view, form), nl=False)
        return view
    before: str | None = None
    while True:
        text = render(view, form, one_line=True)
        if text != before:
            _print_change(before, text, form)
            before = text
        view = await _fetch_through_outages(client, fetch)


async def _fetch_through_outages(client: Client, fetch: Fetch) -> View:
    """Wait for a period, then ask until there is an answer. Raises the errors that no retry resolves."""
    import asyncio

    from fairlead.errors import ConnectionRefused, Unavailable

    reported = False
    while True:
        await asyncio.sleep(PERIOD * random.uniform(0.9, 1.1))
        try:
            return await fetch(client)
        except (ConnectionRefused, Unavailable) as e:
            if isinstance(e, Unavailable) and not e.temporary:
                raise
            if not reported:
                click.echo(f"fairlead: {plain(e.message)}; trying again", err=True)
            reported = True


def _print_change(before: str | None, text: str, form: str) -> None:
    if form == "yaml":
        click.echo(f"---\n{text}", nl=False)
    elif form == "json" or (before is None and not sys.stdout.isatty()):
        click.echo(text, nl=False)
    elif sys.stdout.isatty():
        click.echo(f"{CLEAR}{text}", nl=False)
    else:
        known = set(before.splitlines()) if before is not None else set()
        for line in text.splitlines():
            if line not in known:
                click.echo(line)
    sys.stdout.flush()
