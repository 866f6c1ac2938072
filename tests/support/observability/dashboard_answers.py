"""Every query of the gateway's dashboards, and what Prometheus answers to it: idle, and under load.

    python -m support.observability.dashboard_answers [--plots FOLDER]

Plays the same half a minute as test_dashboards.py and prints a table; with --plots it draws the panels that docs
/dashboards.md shows, from the same answers. What is drawn is what Prometheus gave: no point is made up here.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dashboards import NODES, OVERVIEW, REDIS
from panels import Dashboard, Panel, Query
from support.observability.plots import drawn
from support.observability.prometheus_server import Prometheus, Series
from support.observability.watched_fleet import WatchedFleet, watched_fleet

GATEWAY = (OVERVIEW, NODES, REDIS)
PLOTS = {
    "ends": (OVERVIEW, "Ends"),
    "duration": (OVERVIEW, "Command duration"),
    "closed": (OVERVIEW, "Links closed"),
    "links": (NODES, "Links"),
    "redis": (REDIS, "Redis commands"),
}


@dataclass(frozen=True, slots=True)
class PanelAnswer:
    dashboard: Dashboard
    panel: Panel
    query: Query
    idle: list[Series]
    busy: list[Series]

    @property
    def name(self) -> str:
        return f"{self.dashboard.name}: {self.panel.title}: {self.query.legend}"

    @property
    def moved(self) -> bool:
        """Under load there were values that the idle fleet had not."""
        return bool(_values(self.busy) - _values(self.idle))


def _values(series: list[Series]) -> set[tuple[tuple[tuple[str, str], ...], float]]:
    return {(tuple(sorted(one.labels.items())), value) for one in series for _, value in one.points}


def answers(prometheus: Prometheus, dashboards: Iterable[Dashboard], idle: tuple[float, float],
            busy: tuple[float, float]) -> Iterator[PanelAnswer]:  # fmt: skip
    for dashboard in dashboards:
        for panel in dashboard.panels:
            for query in panel.queries:
                values = (prometheus.between(query.expr, *window) for window in (idle, busy))
                yield PanelAnswer(dashboard, panel, query, *values)


def shown(found: list[Series]) -> str:
    """Number of series, and the least and greatest of all values."""
    values = [value for one in found for _, value in one.points]
    return f"{len(found)}: {min(values):.4g} … {max(values):.4g}" if values else "none"


def table(given: Iterable[PanelAnswer]) -> str:
    lines = ["| dashboard | panel | query | idle (series: least … greatest) | under load |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.dashboard.name} | {one.panel.title} | `{one.query.expr.replace('|', '&#124;')}` "
        f"| {shown(one.idle)} | {shown(one.busy)} |"
        for one in given
    ]
    return "\n".join(lines)


def draw(watched: WatchedFleet, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (dashboard, title) in PLOTS.items():
        panel = next(one for one in dashboard.panels if one.title == title)
        lines = [
            (_legend(query.legend, one), one.points)
            for query in panel.queries
            for one in watched.prometheus.between(query.expr, watched.idle[0], watched.busy[1])
        ]
        (folder / f"{name}.svg").write_text(drawn(panel.title, panel.unit, lines, watched.idle[0]))


def _legend(legend: str, one: Series) -> str:
    for key, value in one.labels.items():
        legend = legend.replace("{{" + key + "}}", value)
    return legend


async def main() -> int:
    parser = argparse.ArgumentParser(description="What Prometheus answers to the dashboards' queries.")
    parser.add_argument("--plots", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with watched_fleet(Path(folder)) as watched:
            print(table(answers(watched.prometheus, GATEWAY, watched.idle, watched.busy)))
            if options.plots:
                draw(watched, options.plots)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
