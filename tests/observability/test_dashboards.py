"""The dashboards: up to date with their source, with metrics that exist, and with an answer to every query."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dashboards import DASHBOARDS
from panels import Panel
from support.observability.dashboard_answers import GATEWAY, PanelAnswer, answers, shown
from support.observability.prometheus_server import Series, metrics_that_exist
from support.observability.watched_fleet import AGENTS, LINKS, SILENT, TALKING, WatchedFleet, watched_fleet

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"\bfairlead_\w+")

STILL = {
    "overview: Cloned agents: cloned": "no agent of the test has a copy",
    "nodes: Garbage collection: {{pod}}": "no generation need fill up in half a minute",
    "nodes: Slow readers: {{pod}}": "simulated agents of this load read",
    "nodes: Send queues: {{pod}}": "simulated agents of this load read",
    "nodes: Membership lost: {{pod}} fenced": "Redis freezes for less than the 15 s after which rows lapse",
    "nodes: Membership lost: {{pod}} data lost": "Redis keeps its data",
    "nodes: Agents claimed again: {{pod}}": "for the same two reasons",
    "redis-tracing: Redis: disk fails": "the disk of Redis takes all",
    "redis-tracing: Appends fenced: {{pod}}": "no agent is held twice",
    "redis-tracing: Doorbells lost: {{pod}}": "no inbox is lost",
    "redis-tracing: Spans lost: {{pod}}": "the collector takes all",
    "redis-tracing: Audit lines not exported yet: {{pod}} waiting": "the collector takes all within a second",
    "redis-tracing: Audit lines not exported yet: {{pod}} removed": "nobody moves files away",
    "redis-tracing: Redeliveries: removed": "no agent has more events than it may have",
    "redis-tracing: Events that sinks did not get: {{sink}} gaps": "none is removed",
    "redis-tracing: Audit failures: refused requests": "the disk is not full",
    "redis-tracing: Audit failures: batches sent again": "the collector takes all",
}
"""Answers that may be the same under this load, and why; all others must move."""


def test_the_committed_json_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "charts/observability", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=50,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_panels_use_metrics_that_exist() -> None:
    there = metrics_that_exist()
    assert len(there) > 60
    for dashboard in DASHBOARDS:
        asked = [query.expr for panel in dashboard.panels for query in panel.queries]
        asked += [mark.expr for mark in dashboard.marks] + [one.query for one in dashboard.variables]
        for expr in asked:
            names = set(NAMED.findall(expr))
            assert names, expr
            assert names <= there, f"{dashboard.name}: {names - there} of {expr}"


def test_every_panel_has_a_description() -> None:
    for dashboard in DASHBOARDS:
        titles = [(row.title, panel.title) for row in dashboard.rows for panel in row.panels]
        assert len(titles) == len(set(titles)), dashboard.name
        for panel in dashboard.panels:
            assert panel.queries, panel.title
            assert panel.unit, panel.title
            assert panel.description.endswith("."), panel.title


def test_panels_do_not_overlap_and_name_no_particular_datasource() -> None:
    for path in sorted((ROOT / "charts" / "fairlead" / "files" / "dashboards").glob("*.json")):
        made: dict[str, Any] = json.loads(path.read_text())
        taken: set[tuple[int, int]] = set()
        for panel in made["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert max(x for x, _ in cells) < 24, panel["title"]
            assert not cells & taken, panel["title"]
            taken |= cells
        assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
        assert set(re.findall(r'"uid": "(.*?)"', path.read_text())) == {made["uid"], "${datasource}"}


def peak(series: list[Series], **labels: str) -> float:
    """The greatest value of those with such labels; 0 without any."""
    return max((v for one in series if labels.items() <= one.labels.items() for _, v in one.points), default=0.0)


@pytest.mark.long
@pytest.mark.timeout(250)
async def test_a_real_prometheus_answers_every_query_and_shows_the_load(
    prometheus_program: str, tmp_path: Path
) -> None:
    async with watched_fleet(tmp_path) as watched:
        given = list(answers(watched.prometheus, GATEWAY, watched.idle, watched.busy))
        await exemplars_are_kept(watched)
    found = {one.name: one for one in given}
    assert set(STILL) <= set(found)
    silent = [one.name for one in given if not one.busy]
    assert not silent
    unmoved = [f"{one.name}: {shown(one.idle)}; {shown(one.busy)}" for one in given if not one.moved]
    assert [line for line in unmoved if not line.startswith(tuple(STILL))] == []

    def answer_of(name: str) -> PanelAnswer:
        (one,) = [one for one in given if one.name.startswith(name)]
        return one

    # The numbers are those of the load, and not just other ones.
    links = answer_of("overview: Links: ")
    assert peak(links.idle) == LINKS
    assert peak(links.busy) == LINKS + AGENTS + TALKING + SILENT
    commands = answer_of("overview: Commands: accepted")
    assert peak(commands.idle) == 0 < peak(commands.busy)
    closed = answer_of("overview: Links closed: ")
    assert peak(closed.idle) == 0
    assert peak(closed.busy, code="1006") > AGENTS / 10, "the storms"
    assert peak(closed.busy, code="4000") > 0, "the drain"
    refused = answer_of("overview: Upgrades refused: ")
    assert peak(refused.busy, reason="token") > 0
    ends = answer_of("overview: Ends: ")
    assert not peak(ends.idle, state="ok")
    assert peak(ends.busy, state="ok") > 0
    assert peak(answer_of("overview: Lost links: ").busy) > 1
    leaving = answer_of("nodes: Draining: ")
    assert peak(leaving.idle) == 0 < peak(leaving.busy, pod="node-2")
    up = answer_of("redis-tracing: Redis: {{pod}}")
    assert min(value for one in up.busy for _, value in one.points) == 0, "the freeze"
    assert peak(answer_of("redis-tracing: Errors: ").busy) >= 1
    for name in ("sent", "received"):
        assert peak(answer_of(f"redis-tracing: Doorbells: {name}").busy) > 0


async def exemplars_are_kept(watched: WatchedFleet) -> None:
    """The dots of the panels that show them."""
    query = "fairlead_command_duration_seconds_bucket"
    kept = watched.prometheus.get("query_exemplars", query=query, start=watched.busy[0], end=watched.busy[1])
    traces = [one["labels"]["trace_id"] for series in kept for one in series["exemplars"]]
    assert traces
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in traces)


def test_a_panel_with_exemplars_queries_them() -> None:
    wanted: list[Panel] = [
        panel for one in DASHBOARDS for panel in one.panels if any(query.exemplars for query in panel.queries)
    ]
    assert {panel.title for panel in wanted} == {"Command duration", "Command durations", "Duration"}
