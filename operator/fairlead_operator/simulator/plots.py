"""Draws the runs of one trace over time, as an SVG with one panel for each question. `comparison` calls it.

matplotlib draws: it is kept, it needs no browser and no foreign host, and an SVG is sharp in a document.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.errors import ConfigError
from fairlead_operator.simulator.measures import HOT, Sample
from fairlead_operator.simulator.report import Run
from fairlead_operator.simulator.scenarios.scenario import Scenario

PANELS: tuple[tuple[str, Callable[[Sample], float]], ...] = (
    ("agents with a link", lambda sample: sample.links),
    ("pods", lambda sample: sample.pods),
    ("fullest pod, %", lambda sample: 100 * sample.greatest_share),
    ("links closed per second, most of a minute", lambda sample: sample.closes),
    ("agents waiting for a link", lambda sample: sample.waiting),
)


def require() -> None:
    """Raises ConfigError when matplotlib is missing: before a run, not after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib cannot be imported: --plots needs it (pip install 'fairlead[simulator]', or leave --plots out)"
        )


def draw(folder: Path, scenario: Scenario, runs: Sequence[Run]) -> Path:
    """Writes `<trace>.svg` into `folder` and returns its path."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 * len(PANELS)), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for axis, (title, value) in zip(axes, PANELS, strict=True):
        for run in runs:
            hours = [sample.second / 3600 for sample in run.samples]
            axis.plot(hours, [value(sample) for sample in run.samples], label=run.policy, linewidth=1)
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(alpha=0.3)
        axis.margins(x=0)
    wanted = [(sample.second / 3600, sample.demand) for sample in runs[0].samples]
    axes[0].plot(*zip(*wanted, strict=True), label="agents that want one", color="black", linestyle=":", linewidth=1)
    axes[2].axhline(100 * HOT, color="black", linestyle=":", linewidth=1)
    axes[3].set_yscale("symlog", linthresh=100)
    axes[4].set_yscale("symlog", linthresh=100)
    axes[-1].set_xlabel("hours")
    axes[0].legend(loc="best", fontsize=8)
    figure.suptitle(f"{scenario.name}: {scenario.text}")
    path = folder / f"{scenario.name}.svg"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The same figures make the same file: no date, no random ids.
        with matplotlib.rc_context({"svg.hashsalt": scenario.name}):
            figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as e:
        raise ConfigError(f"cannot write {path}: {e.strerror} (--plots names a folder)") from e
    return path
