"""Plays a simulation and shows its progress on standard error: a bar in a terminal, or a line for each modelled hour in
a log. `comparison` calls it for each run.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead_operator.simulator.simulation import Simulation

UPDATE_SECONDS = 600
"""Modelled seconds between two updates of the bar."""
LINE_SECONDS = 3600
"""Modelled seconds between two lines."""


def play(simulation: Simulation, title: str, seconds: int) -> None:
    """Plays the simulation, which lasts `seconds`, to its end."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(title, total=seconds)
            simulation.run(lambda second: progress.update(task, completed=second), UPDATE_SECONDS)
        return

    def line(second: int) -> None:
        hours = f"{second / 3600:g} of {seconds / 3600:.4g} h"
        console.print(f"{title}: {hours}, {len(simulation.pods)} pods, {simulation.linked:,} links", highlight=False)

    simulation.run(line, LINE_SECONDS)
