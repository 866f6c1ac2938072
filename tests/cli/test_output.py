"""Output: tables, JSON, YAML, names, colours, --watch and progress."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.main import cli
from fairlead.cli.output.formats import as_yaml
from fairlead.cli.output.table import format_table

from support.cli.processes import CliFleet
from support.cli.scripted_api import ScriptedApi
from support.cli.terminal import Screen
from support.waiting import WAIT

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]
MakeScreen = Callable[..., Screen]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(deadline=None)  # the machine may be busy; what is written is short
@given(JSON)
def test_yaml_is_read_back_as_what_was_written(value: object) -> None:
    assert yaml.safe_load(as_yaml(value)) == value


@pytest.mark.parametrize(
    "word", ["yes", "No", "null", "~", "1", "1.5", "0x10", "1_000", "12:30", "- a", "a: b", "#", ""]
)
def test_yaml_of_words_that_mean_something_else(word: str) -> None:
    assert yaml.safe_load(as_yaml({word: word})) == {word: word}


@pytest.mark.parametrize("args", [("ls",), ("get", "web-1"), ("label", "web-1", "form=tested")])
def test_agents_ls_has_every_output_format(fleet: CliFleet, args: tuple[str, ...]) -> None:
    def output_as(form: str) -> str:
        return output_of(fleet, "agents", *args, "-o", form)

    assert "web-1" in output_as("name").splitlines()
    assert json.loads(output_as("json")) == yaml.safe_load(output_as("yaml"))
    assert len(output_as("wide")) >= len(output_as("table")) > 0
    for form in ("table", "wide", "json", "yaml", "name"):
        assert "\x1b" not in output_as(form)
    output_of(fleet, "agents", "label", "web-1", "form-")


def output_of(fleet: CliFleet, *args: str) -> str:
    """What the command writes to stdout. It runs in this process, because an interpreter for each format would take
    long."""
    done = CliRunner().invoke(cli, args, env={"FAIRLEAD_API": fleet.api}, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_why_has_every_output_format(fleet: CliFleet) -> None:
    data = json.loads(output_of(fleet, "why", "web-1", "-o", "json"))
    assert data["agent"]["id"] == "web-1"
    assert data["link"]["node"] == "node-1"
    assert yaml.safe_load(output_of(fleet, "why", "web-1", "-o", "yaml"))["agent"] == data["agent"]
    assert output_of(fleet, "why", "web-1", "-o", "name") == "web-1\n"
    assert output_of(fleet, "why", "web-1").startswith("web-1 is online on node-1 since 20")


def test_wide_tables_have_the_facts_of_agents(fleet: CliFleet) -> None:
    head, *rows = output_of(fleet, "agents", "ls", "-o", "wide", "-l", "os=linux").splitlines()
    assert head.split()[:6] == ["AGENT", "STATE", "NODE", "SINCE", "LABELS", "FACTS"]
    assert "os=linux" in rows[0]


def test_text_of_an_agent_cannot_control_the_terminal() -> None:
    lines = format_table(("A", "B"), [("\x1b[2J", "x\r\n"), ("é", "\u202e")])
    assert lines == ["A     B", "?[2J  x??", "é     ?"]


HEAD, ROWS = ("AGENT", "N", "WHY"), [("a-very-long-agent-id", "7", "one reason that is rather long"), ("b", "10", "")]


def test_a_table_for_a_pipe_has_every_cell_in_full() -> None:
    assert format_table(HEAD, ROWS, numeric=[1]) == [
        "AGENT                  N  WHY",
        "a-very-long-agent-id   7  one reason that is rather long",
        "b                     10",
    ]


@pytest.mark.parametrize("width", [56, 50, 40, 30])
def test_a_table_for_a_terminal_shortens_its_widest_column_and_never_the_names(width: int) -> None:
    head, first, second = format_table(HEAD, ROWS, width=width)
    assert max(map(len, (head, first, second))) <= width
    assert first.startswith("a-very-long-agent-id  7")
    assert first.endswith("…") or width == 56
    assert second.split() == ["b", "10"]


def test_a_table_fits_the_terminal(api: ScriptedApi, screen: MakeScreen) -> None:
    agent = {"id": "web-1", "state": "away", "node": "node-1", "why": "word " * 40, "facts": {"os": "linux"}}
    api.pages = [{"agents": [agent], "cursor": None}]
    lines = screen(api.url, "agents", "ls", env={"TERM": "dumb"}).end().splitlines()
    assert [line.split()[0] for line in lines] == ["AGENT", "web-1"]
    assert len(lines[1]) <= 100, "the terminal of the test has so many columns"


def test_colours_are_used_only_on_terminals_that_allow_them(fleet: CliFleet, screen: MakeScreen) -> None:
    assert "\x1b[32monline\x1b[0m" in screen(fleet.api, "agents", "ls").end()
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in screen(fleet.api, "agents", "ls", env=env).end()


def test_watch_on_a_terminal_redraws_changes(fleet: CliFleet, run: Run, screen: MakeScreen) -> None:
    run("agents", "label", "web-1", "seen-", api=fleet)
    shown = screen(fleet.api, "agents", "get", "web-1", "--watch")
    shown.until(rb"web-1")
    assert run("agents", "label", "web-1", "seen=yes", api=fleet).returncode == 0
    shown.until(rb"\x1b\[H\x1b\[2J[^\x1b]*web-1(.|\r|\n)*seen=yes")
    shown.type(b"\x03")
    assert shown.wait() == 130
    assert run("agents", "label", "web-1", "seen-", api=fleet).returncode == 0


def test_watch_into_a_pipe_writes_changes(api: ScriptedApi, start: Start, wait_until: Callable[..., object]) -> None:
    def agents(state: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [{"id": "a", "state": "online"}, {"id": "b", "state": state}]
        return [{"agents": rows, "cursor": None}]

    api.pages = agents("online")
    process = start("agents", "ls", "--watch")
    assert process.stdout is not None
    assert [process.stdout.readline().split()[:2] for _ in range(3)] == [
        [b"AGENT", b"STATE"],
        [b"a", b"online"],
        [b"b", b"online"],
    ]
    api.pages = agents("away")
    assert process.stdout.readline().split()[:2] == [b"b", b"away"]
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 130
    api.pages = agents("online")
    process = start("agents", "ls", "--watch", "-o", "json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["agents"][1]["state"] == "online"
    api.pages = agents("away")
    assert json.loads(process.stdout.readline())["agents"][1]["state"] == "away"


def test_watch_survives_an_unreachable_gateway(
    fleet: CliFleet, relay_to: Callable[[str], Any], start: Start, run: Run
) -> None:
    relay = relay_to(fleet.api)
    process = start("agents", "ls", "--watch", "-o", "name", "--api", f"http://127.0.0.1:{relay.port}")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    relay.refuse()
    assert b"trying again" in process.stderr.readline()
    assert process.poll() is None


def test_progress_is_shown_on_a_terminal(fleet: CliFleet, tmp_path: Path, screen: MakeScreen) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    shown = screen(fleet.api, "cp", f"web-1:{tmp_path}/big", str(tmp_path / "copy")).end()
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"big 100% ━{24} 3\.0/3\.0 MiB [0-9.]+ [kM]?B/s 0:00:\d\d", line), shown
    shown = screen(fleet.api, "cp", "-q", f"web-1:{tmp_path}/big", str(tmp_path / "copy")).end()
    assert shown == ""
