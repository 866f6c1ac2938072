"""A real Prometheus that scrapes its targets each second, and the queries of panels asked of it.

Used by the tests of dashboards and alerts and by dashboard_answers.py. The programs are those of `make prometheus`. The
variables of a dashboard are put in as Grafana would, all of them chosen; a rate is over five scrapes.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead_operator.metrics import Metrics as OperatorMetrics

from support.free_ports import free_port

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 20.0
RATE = 5
"""Seconds, and scrapes. Short, so that one load does not show in the other's answers."""
VARIABLES = {"$__rate_interval": f"{RATE}s", "$namespace": ".*", "$gateway": ".*", "$pod": ".*"}


KINDS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def metrics_that_exist() -> set[str]:
    """Series of nodes, by the page that is held against a real /metrics, and of the operator, by its registry."""
    rows = re.findall(r"\| `(fairlead_\w+)(?:\{.*?\})?` \| (\w+) \|", (ROOT / "docs" / "telemetry.md").read_text())
    rows += [(one.name, one.type) for one in OperatorMetrics().registry.collect()]
    # The page calls a counter by the name of its series, the registry does not.
    return {f"{name.removesuffix('_total')}{end}" for name, kind in rows for end in KINDS[kind]}


def program(name: str) -> str | None:
    """Of PROMETHEUS_BIN, a folder; else what `make prometheus` has built, else on PATH."""
    built = ROOT / ".cache" / "prometheus" / "bin"
    places = [os.environ.get("PROMETHEUS_BIN") or str(built), os.environ["PATH"]]
    return shutil.which(name, path=os.pathsep.join(places))


@dataclass(frozen=True, slots=True)
class Target:
    job: str
    address: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """Times and values; without those that are not numbers."""


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: object) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{query.get('query', path)}: {e.read().decode()}") from e
        assert body["status"] == "success", body
        return body["data"]

    def between(self, expr: str, start: float, end: float) -> list[Series]:
        """What the panel would draw: one point a second. Series that hold no number are left out."""
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        assert "$" not in re.sub(r'"[^"]*"', "", expr), expr
        found = []
        for one in self.get("query_range", query=expr, start=start, end=end, step=1)["result"]:
            numbers = ((float(at), float(value)) for at, value in one["values"])
            if points := tuple((at, value) for at, value in numbers if math.isfinite(value)):
                found.append(Series(one["metric"], points))
        return found

    def names(self) -> set[str]:
        return set(self.get("label/__name__/values"))

    def wait_for(self, expr: str, deadline: float = TIMEOUT) -> None:
        """Until the query has an answer."""
        ends = time.monotonic() + deadline
        while not self.get("query", query=expr)["result"]:
            assert time.monotonic() < ends, f"no answer within {deadline:g} s: {expr}"
            time.sleep(0.2)


@contextmanager
def scraping(folder: Path, targets: Sequence[Target]) -> Iterator[Prometheus]:
    """Labels of a target give way to those of its metrics, as in the chart's monitors."""
    found = program("prometheus")
    assert found is not None
    jobs = [
        {
            "job_name": f"{one.job}-{at}", "honor_labels": True,
            "static_configs": [{"targets": [one.address.removeprefix("http://")], "labels": dict(one.labels)}],
        }
        for at, one in enumerate(targets)
    ]  # fmt: skip
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    log = folder / "prometheus.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                found, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address={address}", "--enable-feature=exemplar-storage", "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
        )  # fmt: skip
    try:
        server = Prometheus(f"http://{address}")
        deadline = time.monotonic() + TIMEOUT
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                urllib.request.urlopen(f"{server.url}/-/ready", timeout=2).close()
                break
            except OSError:  # nothing listens yet, or it answers 503 while it starts
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
