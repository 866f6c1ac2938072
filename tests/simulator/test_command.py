"""`fairlead-operator simulate`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead_operator.simulator.command import simulate
from fairlead_operator.simulator.policies import POLICIES

WITHOUT = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Block())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {names!r} else found(name, *more)
from fairlead_operator.main import main
sys.argv = ["fairlead-operator", *{arguments!r}]
main()
"""


def run(*arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(names=without, arguments=arguments)
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=110, check=False)


def test_traces_are_played_under_all_policies_and_shown_beside_one_another(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = run("simulate", "--agents", "2e3", "--hours", "0.1", "--capacity", "200", "--trace", "rollout",
               "--json", str(out), "--plots", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(out.read_text())
    assert [one["policy"] for one in document["runs"]] == list(POLICIES)
    for one in document["runs"]:
        assert (one["trace"], one["agents"], one["seconds"]) == ("rollout", 2000, 360)
        assert len(one["samples"]) == 6
        assert one["greatest_closes_per_second"] > 0, "the rollout closes links"
    for line in ("pod-hours", "moves per agent and day", "seconds with a pod above 95 %", "1.00 ×"):
        assert line in done.stdout
    drawn = (tmp_path / "rollout.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "http-equiv" not in drawn
    assert "<script" not in drawn


def test_an_owners_trace_is_played_on_the_owners_spec(tmp_path: Path) -> None:
    trace, spec, out = tmp_path / "links.csv", tmp_path / "edge.yaml", tmp_path / "figures.json"
    trace.write_text("0,500\n60,900\n")
    spec.write_text(
        "kind: LinkGateway\nspec: {image: i, capacity: 300, replicas: {min: 3, max: 4}, redis: {url: 'redis://r'},"
        " tokens: {secretRef: {name: t}}}\n"
    )
    assert simulate(["--trace-file", str(trace), "--spec", str(spec), "--policy", "fairlead", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["spec"]["capacity"] == 300
    assert document["spec"]["replicas"] == {"min": 3, "max": 4}
    assert [(one["trace"], one["agents"], one["most_pods"]) for one in document["runs"]] == [("links", 900, 4)]


def test_a_log_gets_a_line_for_each_hour_unless_it_should_be_quiet() -> None:
    arguments = ("simulate", "--agents", "500", "--capacity", "100", "--hours", "2", "--policy", "hpa")
    done = run(*arguments)
    lines = done.stderr.splitlines()
    assert [line.split(" h, ")[0] for line in lines] == ["day, hpa: 1 of 2", "day, hpa: 2 of 2"], done.stderr
    assert lines[0].endswith(" links")
    assert run(*arguments, "--quiet").stderr == ""


def test_help_lists_traces_policies_and_how_to_get_a_trace() -> None:
    done = run("simulate", "--help")
    assert done.returncode == 0
    for word in ("dead-metric", "agones", "least-connections", "query_range", "--seed"):
        assert word in done.stdout


def test_the_operators_image_has_no_simulator_and_says_so() -> None:
    done = run("simulate", "--help", without=("numpy", "rich", "matplotlib"))
    assert done.returncode == 2
    assert done.stderr.startswith("numpy and rich cannot be imported: the simulator is not a part of the operator's")
    assert run("--version", without=("numpy", "rich", "matplotlib")).returncode == 0, "the operator itself starts"


def test_plots_without_matplotlib_are_refused_before_the_run() -> None:
    done = run("simulate", "--hours", "24", "--plots", "x", without=("matplotlib",))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("matplotlib cannot be imported: --plots needs it")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--pod-start", "60:30"], "--pod-start 60:30: a median and a 95th percentile in seconds, such as 30:60"),
        (["--agents", "0"], "--agents 0: a number from 1"),
        (["--hours", "0"], "--hours 0: a minute to"),
        (["--lost-per-day", "-1"], "--lost-per-day -1: a number from 0"),
        (["--min", "5", "--max", "3"], "replicas"),
        (["--trace", "day", "--trace-file", "x"], "both --trace and --trace-file were given"),
        (["--spec", "/nowhere/edge.yaml"], "cannot read /nowhere/edge.yaml"),
        (["--trace", "night"], "invalid choice: 'night'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: int | str | None = simulate(arguments)
    except SystemExit as end:  # argparse's own way
        code = end.code
    assert code == 2
    assert wrong in capsys.readouterr().err
