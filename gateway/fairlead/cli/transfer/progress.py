"""How far a copy is: a progress bar on the last line of the terminal.

Used by `file_copy`. It is drawn on stderr, and only when that is a terminal; rich draws it.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class CopyProgress:
    """The progress bar of one copy: name, share, bytes, rate and time left. It stays on the screen when the copy is
    over.
    """

    def __init__(self, name: str, total: int | None = None, quiet: bool = False) -> None:
        """`total` is the size in bytes, None while it is not known. `quiet` hides the bar."""
        self._progress = None if quiet else _progress()
        if self._progress is not None:
            self._task = self._progress.add_task(name, total=total)

    def __enter__(self) -> CopyProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def set_total(self, total: int) -> None:
        if self._progress is not None:
            self._progress.update(self._task, total=total)

    def add(self, count: int) -> None:
        """Add `count` bytes to the progress. The first ones show the bar, so a refused copy has none."""
        if self._progress is not None:
            self._progress.start()
            self._progress.advance(self._task, count)


def _progress() -> Progress | None:
    """None if stderr is not a terminal that can redraw a line."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    columns = (
        TextColumn("{task.description}", markup=False),
        TaskProgressColumn("{task.percentage:>3.0f}%"),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    return Progress(*columns, console=console, redirect_stdout=False)
