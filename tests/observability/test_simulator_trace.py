"""docs/simulator.md, "Your own trace": its commands, with a real Prometheus that remembers a week of a fleet."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from pathlib import Path

import pytest

from fairlead_operator.simulator.command import simulate
from fairlead_operator.simulator.scenarios.trace_file import read_trace

from support.observability.prometheus_server import metrics_that_exist, scraping

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulator.md"
SCRAPED = 240
"""Seconds between two samples: Prometheus looks back five minutes for one."""
WEEK = 7 * 86_400
PODS = 2
LINKS = 500
"""Of each pod, on average over a day."""


def commands() -> list[str]:
    """Those of the page's block with `query_range`, each in one line."""
    (block,) = (one for one in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) if "query_range" in one)
    return [line for line in block.replace("\\\n", "").splitlines() if line]


def links(at: int) -> int:
    return round(LINKS * (1 + 0.5 * math.sin(2 * math.pi * at / 86_400)))


@pytest.fixture
def remembered(tmp_path: Path, promtool: str, prometheus_program: str) -> None:
    """Prometheus' storage has the gauge of two nodes for a bit more than a week."""
    end = int(time.time())
    first = end - WEEK - 2 * SCRAPED
    lines = ["# TYPE fairlead_links gauge"]
    for pod in range(PODS):
        label = f'{{gateway="edge",pod="edge-{pod}"}}'
        lines += [f"fairlead_links{label} {links(at)} {at}" for at in range(first, end + 1, SCRAPED)]
    (tmp_path / "week.om").write_text("\n".join([*lines, "# EOF\n"]))
    done = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "week.om", tmp_path / "tsdb"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("remembered")
def test_a_week_of_prometheus_is_played_with_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fairlead_links" in metrics_that_exist()
    query, resource, play = commands()
    with scraping(tmp_path, []) as prometheus:
        subprocess.run(
            ["bash", "-c", query.replace("http://prometheus:9090", prometheus.url)],
            cwd=tmp_path, timeout=300, check=True,
        )  # fmt: skip
    trace = read_trace(tmp_path / "week.json")
    assert trace.seconds == pytest.approx(WEEK, abs=2 * SCRAPED)
    assert trace.agents == pytest.approx(PODS * LINKS * 1.5, rel=0.02)
    assert trace.demand.mean() == pytest.approx(PODS * LINKS, rel=0.02)

    answer = json.loads((tmp_path / "week.json").read_text())
    (series,) = answer["data"]["result"]
    series["values"] = series["values"][:15]  # a week takes minutes
    (tmp_path / "week.json").write_text(json.dumps(answer))
    assert resource == "kubectl get lgw/edge -o yaml > edge.yaml"
    (tmp_path / "edge.yaml").write_text(
        "apiVersion: fairlead.dev/v1alpha1\nkind: LinkGateway\nmetadata: {name: edge}\n"
        "spec: {image: i, capacity: 300, redis: {url: 'redis://r'}, tokens: {secretRef: {name: t}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    program, subcommand, *arguments = play.split()
    assert (program, subcommand) == ("fairlead-operator", "simulate")
    assert simulate([*arguments, "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "week: 15 points of week.json" in shown
    assert "most pods" in shown
    assert (tmp_path / "week.svg").exists()
