"""Draws the runs of one trace over time, as an SVG with one panel for each question. `comparison` calls it.

It uses matplotlib, which is maintained and needs neither a browser nor another host; an SVG is sharp in a document.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairlead.errors import ConfigError
from fairlead_operator.simulator.measures import HOT, Sample
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.scenario import NOWHERE, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 288
"""Points of a line, one for each five minutes of a day: more would be closer together than a pixel and make the file
large."""
WIDTH, PANEL_HEIGHT = 9.0, 2.0
"""Inches."""


class Panel(NamedTuple):
    title: str
    value: Callable[[Sample], float]
    linear_up_to: int | None = None
    """The value above which the axis is logarithmic; None for a linear axis."""


PANELS = (
    Panel("Agents with a link, and agents that want one (dotted)", lambda sample: sample.links),
    Panel("Pods, those that start and those that leave too", lambda sample: sample.pods),
    Panel("Fullest pod, in % of its capacity (dotted: 95 %)", lambda sample: 100 * sample.greatest_share),
    Panel("Links closed per second because pods are to be fewer, newer or fuller", lambda sample: sample.closes, 100),
    Panel("Agents that wait for a link, because theirs was lost or closed", lambda sample: sample.waiting, 100),
)
STYLES = {
    "fairlead": ("#0072B2", "solid", 1.8),
    "hpa": ("#D55E00", "solid", 1.0),
    "keda": ("#000000", "dashed", 1.0),
    "agones": ("#009E73", "dashdot", 1.0),
}
"""Colour, line and its width of each policy. Colour-blind people can distinguish the colours too (Okabe and Ito,
"Color Universal Design", 2008), and the lines without any colour."""


def require() -> None:
    """Raises ConfigError if matplotlib is missing. Called before a run, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib cannot be imported: --plots needs it (pip install 'fairlead[simulator]', or leave --plots out)"
        )


def draw(folder: Path, scenario: Scenario, runs: Sequence[Run]) -> Path:
    """Writes `<trace>.svg` into `folder` and returns its path."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(PANELS) + 1), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for axis, panel in zip(axes, PANELS, strict=True):
        _draw_panel(axis, panel, runs)
        _mark_events(axis, scenario)
    wanted = thinned(runs[0].samples, lambda sample: sample.demand)
    axes[0].plot(*zip(*wanted, strict=True), color="#555555", linestyle="dotted", linewidth=1.2)
    axes[2].axhline(100 * HOT, color="#555555", linestyle="dotted", linewidth=1.2)
    axes[2].set_ylim(0, 110)
    axes[-1].set_xlabel("Hours since the beginning")
    lines, labels = axes[1].get_legend_handles_labels()
    figure.legend(lines[::-1], labels[::-1], loc="outside upper right", ncols=len(labels), frameon=False)
    text = f"{scenario.name}, {scenario.agents:,} agents\n{scenario.text}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=11)
    path = folder / f"{scenario.name}.svg"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The same figures produce the same file, without a date and random ids. Text stays text, which keeps the file
        # small.
        with matplotlib.rc_context({"svg.hashsalt": scenario.name, "svg.fonttype": "none"}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as e:
        raise ConfigError(f"cannot write {path}: {e.strerror} (--plots names a folder)") from e
    return path


def thinned(samples: Sequence[Sample], value: Callable[[Sample], float]) -> list[tuple[float, float]]:
    """Hours and values, at most POINTS of them. Each is the greatest of its neighbours, so that no peak is lost."""
    every = -(-len(samples) // POINTS)
    groups = (samples[i : i + every] for i in range(0, len(samples), every))
    return [(group[-1].second / 3600, max(value(sample) for sample in group)) for group in groups]


def _draw_panel(axis: Axes, panel: Panel, runs: Sequence[Run]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for run in reversed(runs):  # the first one is drawn last, on top of the others
        colour, line, width = STYLES[run.policy]
        points = thinned(run.samples, panel.value)
        axis.plot(*zip(*points, strict=True), label=run.policy, color=colour, linestyle=line, linewidth=width)
    axis.set_title(panel.title, loc="left", fontsize=9)
    axis.grid(alpha=0.3)
    axis.margins(x=0)
    axis.tick_params(labelsize=8)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 3, 5, 6, 10]))
    if panel.linear_up_to is not None:
        axis.set_yscale("symlog", linthresh=panel.linear_up_to)
    else:
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))


def _mark_events(axis: Axes, scenario: Scenario) -> None:
    """Marks an event with a vertical line, and a period with a grey area."""
    for second in (scenario.rollout_at, scenario.zone_down.begin or None):
        if second is not None:
            axis.axvline(second / 3600, color="#555555", linestyle="dotted", linewidth=1.2)
    for span in (scenario.stuck, scenario.unreadable):
        if span != NOWHERE:
            axis.axvspan(span.begin / 3600, min(span.end, scenario.seconds) / 3600, color="#BBBBBB", alpha=0.4, lw=0)
