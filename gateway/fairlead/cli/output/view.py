"""Answers on stdout: as a table, a wide one, JSON, YAML or bare names; once, or again whenever they change.

Used by the commands that look at something. Colours and a redrawn screen are for a terminal alone (and not with
NO_COLOR); into a pipe go the same words without them, so that what is shown can be cut and searched. What an agent has
written about itself is made plain, or escaped in JSON and YAML: it must not steer the terminal.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import Client

F = TypeVar("F", bound=Callable[..., object])

FORMS = ("table", "wide", "json", "yaml", "name")
PERIOD = 2.0
"""Seconds between two looks of --watch: what changes faster is not read by people."""
_STATES = {"online": "green", "away": "yellow", "offline": "red"}


@dataclass(frozen=True, slots=True)
class View:
    """One answer, in every form. Lines are plain text; a word that is a state is coloured on a terminal."""

    names: Sequence[str]
    data: object
    lines: Sequence[str]
    wide: Sequence[str]


def output_option(command: F) -> F:
    option = click.option(
        "-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help="How it is written."
    )
    return option(command)


def report_option(command: F) -> F:
    """For what has no names to list: a table for people or JSON for programs."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How it is written.",
    )
    return option(command)


def watch_option(command: F) -> F:
    return click.option("-w", "--watch", is_flag=True, help="Go on, and show what changes, until Ctrl-C.")(command)


def show(view: View, form: str) -> None:
    click.echo(_text(view, form), nl=False)


async def present(client: Client, look: Callable[[Client], Awaitable[View]], form: str, watch: bool) -> View:
    """Show what `look` sees; with `watch` until Ctrl-C, through outages."""
    import asyncio

    from fairlead.errors import ConnectionRefused, Unavailable

    view = await look(client)
    if not watch:
        show(view, form)
        return view
    before: str | None = None
    while True:
        text = _text(view, form, flat=True)
        if text != before:
            _show_change(before, text, form)
            before = text
        silent = False
        while True:
            await asyncio.sleep(PERIOD * random.uniform(0.9, 1.1))
            try:
                view = await look(client)
                break
            except (ConnectionRefused, Unavailable) as e:
                if isinstance(e, Unavailable) and not e.temporary:
                    raise
                if not silent:
                    click.echo(f"fairlead: {plain(e.message)}; trying again", err=True)
                silent = True


def _show_change(before: str | None, text: str, form: str) -> None:
    if form == "yaml":
        click.echo(f"---\n{text}", nl=False)
    elif form == "json" or (before is None and not sys.stdout.isatty()):
        click.echo(text, nl=False)
    elif sys.stdout.isatty():
        click.echo(f"\x1b[H\x1b[2J{text}", nl=False)
    else:
        known = set(before.splitlines()) if before is not None else set()
        for line in text.splitlines():
            if line not in known:
                click.echo(line)
    sys.stdout.flush()


def _text(view: View, form: str, flat: bool = False) -> str:
    """`flat`: JSON in one line, since one document follows the other."""
    if form == "json":
        return as_json(view.data, None if flat else 2) + "\n"
    if form == "yaml":
        from fairlead.cli.output.yamltext import dump

        return dump(view.data)
    lines = view.names if form == "name" else view.wide if form == "wide" else view.lines
    text = "".join(f"{plain(line)}\n" for line in lines)
    return text if form == "name" or not coloured() else _STATE.sub(_paint, text)


_STATE = re.compile(r"(?<=[ :])(online|away|offline)(?= |$)", re.MULTILINE)


def _paint(found: re.Match[str]) -> str:
    return click.style(found[0], fg=_STATES[found[0]])


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell."""
    cells = [[plain(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def as_json(data: object, indent: int | None = 2) -> str:
    """Without a line end. What a terminal might obey is escaped, as JSON allows it: programs read the same text."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def pairs(values: dict[str, str]) -> str:
    """Labels or facts in one cell."""
    return ",".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
