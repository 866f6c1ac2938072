"""Tables for people, and the cells that several of them have.

Used by the commands that list something. rich measures and fits the columns: on a terminal a row takes one line, so the
widest columns are shortened; a pipe receives every cell in full.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fairlead.text import plain

if TYPE_CHECKING:
    from rich.text import Text

UNLIMITED = 1 << 20
"""The width of a table that no terminal limits, in columns."""


def format_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Collection[int] = (),
    width: int | None = None,
) -> list[str]:
    """The lines of a table. The columns in `numeric`, counted from 0, are aligned to the right.

    A table that is wider than `width` has its widest columns shortened to fit, except the first one, which names the
    row. None is the terminal's width, or no limit when stdout is not a terminal.
    """
    from rich.console import Console
    from rich.table import Table

    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for number, title in enumerate(head):
        grid.add_column(_cell(title), justify="right" if number in numeric else "left", no_wrap=number == 0)
    for row in rows:
        grid.add_row(*map(_cell, row))
    written = io.StringIO()
    Console(file=written, width=width, color_system=None, legacy_windows=False).print(grid)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def _cell(text: str) -> Text:
    from rich.text import Text

    return Text(plain(text), no_wrap=True, overflow="ellipsis")


def format_pairs(values: dict[str, str]) -> str:
    """Labels or facts in one cell: KEY=VALUE, sorted and joined by commas."""
    return ",".join(f"{key}={value}" for key, value in sorted(values.items())) or "-"
