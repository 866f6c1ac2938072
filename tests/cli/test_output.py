"""What is written where and in which form: tables, JSON, YAML, names, colours, --watch, completion."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cli.main import cli
from fairlead.cli.output import table
from fairlead.cli.progress import clock, line, size
from fairlead.cli.yamltext import dump

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Start = Callable[..., subprocess.Popen[bytes]]
WAIT = 20.0


class Fleet(Protocol):
    api: str


class Api(Protocol):
    url: str
    pages: list[dict[str, object]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(deadline=None)  # the machine may be busy; what is written is short
@given(JSON)
def test_yaml_is_read_back_as_what_was_written(value: object) -> None:
    assert yaml.safe_load(dump(value)) == value


@pytest.mark.parametrize(
    "word", ["yes", "No", "null", "~", "1", "1.5", "0x10", "1_000", "12:30", "- a", "a: b", "#", ""]
)
def test_yaml_of_words_that_mean_something_else(word: str) -> None:
    assert yaml.safe_load(dump({word: word})) == {word: word}


@pytest.mark.parametrize("args", [("ls",), ("get", "web-1"), ("label", "web-1", "form=tested")])
def test_every_form_of_the_agents(fleet: Fleet, args: tuple[str, ...]) -> None:
    def say(form: str) -> str:
        return told(fleet, "agents", *args, "-o", form)

    assert "web-1" in say("name").splitlines()
    assert json.loads(say("json")) == yaml.safe_load(say("yaml"))
    assert len(say("wide")) >= len(say("table")) > 0
    for form in ("table", "wide", "json", "yaml", "name"):
        assert "\x1b" not in say(form)


def told(fleet: Fleet, *args: str) -> str:
    """What the command writes to stdout, in this process: an interpreter for each form would take its time."""
    done = CliRunner().invoke(cli, args, env={"FAIRLEAD_API": fleet.api}, catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_every_form_of_why(fleet: Fleet) -> None:
    data = json.loads(told(fleet, "why", "web-1", "-o", "json"))
    assert data["agent"]["id"] == "web-1"
    assert data["link"]["node"] == "node-1"
    assert yaml.safe_load(told(fleet, "why", "web-1", "-o", "yaml"))["agent"] == data["agent"]
    assert told(fleet, "why", "web-1", "-o", "name") == "web-1\n"
    assert told(fleet, "why", "web-1").startswith("web-1 is online on node-1 since 20")


def test_wide_tables_have_what_agents_say_of_themselves(fleet: Fleet) -> None:
    head, *rows = told(fleet, "agents", "ls", "-o", "wide", "-l", "os=linux").splitlines()
    assert head.split()[:6] == ["AGENT", "STATE", "NODE", "SINCE", "LABELS", "FACTS"]
    assert "os=linux" in rows[0]


def test_what_an_agent_says_does_not_steer_the_terminal() -> None:
    lines = table(("A", "B"), [("\x1b[2J", "x\r\n"), ("é", "\u202e")])
    assert lines == ["A     B", "?[2J  x??", "é     ?"]


class Screen:
    """A terminal with a command on it."""

    def __init__(self, *args: str, api: str, env: dict[str, str] | None = None) -> None:
        self.ours, theirs = pty.openpty()
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRLEAD_", "NO_COLOR"))}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**clean, "FAIRLEAD_API": api, "TERM": "xterm", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # one system call
        )
        os.close(theirs)
        self.shown = ""

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + WAIT
        while not re.search(pattern, self.shown):
            left = deadline - time.monotonic()
            assert left > 0, self.shown
            if select.select([self.ours], [], [], left)[0]:
                self.shown += os.read(self.ours, 65536).decode()

    def end(self) -> str:
        """All that it has shown, once it has ended by itself."""
        while True:
            try:
                data = os.read(self.ours, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            self.shown += data.decode()
        self.process.wait(WAIT)
        os.close(self.ours)
        return self.shown


def test_colours_are_for_terminals_that_want_them(fleet: Fleet) -> None:
    assert "\x1b[32monline\x1b[0m" in Screen("agents", "ls", api=fleet.api).end()
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in Screen("agents", "ls", api=fleet.api, env=env).end()


def test_watching_on_a_terminal_redraws_what_has_changed(fleet: Fleet, run: Run) -> None:
    run("agents", "label", "web-1", "seen-", api=fleet)
    screen = Screen("agents", "get", "web-1", "--watch", api=fleet.api)
    screen.until("web-1")
    assert run("agents", "label", "web-1", "seen=yes", api=fleet).returncode == 0
    screen.until(r"\x1b\[H\x1b\[2J[^\x1b]*web-1(.|\r|\n)*seen=yes")
    os.write(screen.ours, b"\x03")
    screen.end()
    assert screen.process.returncode == 130


def test_watching_into_a_pipe_writes_what_has_changed(
    api: Api, start: Start, wait_until: Callable[..., object]
) -> None:
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


def test_watching_outlasts_a_gateway_that_is_away(
    fleet: Fleet, relay_to: Callable[[str], Any], start: Start, run: Run
) -> None:
    relay = relay_to(fleet.api)
    process = start("agents", "ls", "--watch", "-o", "name", "--api", f"http://127.0.0.1:{relay.port}")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    relay.refuse()
    assert b"trying again" in process.stderr.readline()
    assert process.poll() is None


def complete(run: Run, words: str, count: int, api: object, env: dict[str, str] | None = None) -> list[str]:
    asked = {"_FAIRLEAD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = run(api=api, env={**asked, **(env or {})})
    assert done.stderr == b""
    return [one.partition(",")[2] for one in done.stdout.decode().split()]


def test_completion_offers_commands_forms_and_agents(fleet: Fleet, run: Run, wait_until: Callable[..., object]) -> None:
    assert complete(run, "fairlead ag", 1, fleet) == ["agent", "agents"]
    assert "yaml" in complete(run, "fairlead agents ls -o ", 4, fleet)
    for words in ("exec", "shell", "why", "agents get", "agents label"):
        typed = f"fairlead {words} web"
        # On a machine that is too busy for the deadline nothing is offered: then the user presses TAB again.
        wait_until(lambda typed=typed: complete(run, typed, len(typed.split()) - 1, fleet) == ["web-1"])
    wait_until(lambda: complete(run, "fairlead cp web", 2, fleet) == ["web-1:/"])
    typed = f"fairlead why --api {fleet.api} web"
    wait_until(lambda: complete(run, typed, 4, "http://127.0.0.1:1") == ["web-1"])


def test_completion_of_a_gateway_that_is_silent_offers_nothing_soon(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert complete(run, "fairlead why web", 2, f"http://127.0.0.1:{silent.getsockname()[1]}") == []
        assert time.monotonic() - began < 10
    assert complete(run, "fairlead why web", 2, "http://gateway.invalid") == [], "no token for it either"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_those_of_their_shells(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_FAIRLEAD_COMPLETE={shell}_complete".encode() in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, check=True)


def test_bash_completes_with_the_script(
    fleet: Fleet, run: Run, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    """The shell itself calls the function that the script has defined."""
    command = tmp_path / "fairlead"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m fairlead "$@"\n')
    command.chmod(0o755)
    script = run("completion", "bash").stdout.decode()
    ask = 'COMP_WORDS=(fairlead why we); COMP_CWORD=2; _fairlead_completion fairlead; echo "${COMPREPLY[@]}"'
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAIRLEAD_API": fleet.api}

    def press_tab() -> list[str]:
        line = ["bash", "-c", f"{script}\n{ask}"]
        return subprocess.run(line, capture_output=True, env=env, check=True, text=True).stdout.split()

    wait_until(lambda: press_tab() == ["web-1"])


def test_progress_tells_part_bytes_rate_and_time_left() -> None:
    assert line("x", 512 << 10, 1 << 20, 128 << 10, 4) == (
        "x   50% [############------------] 512.0 KiB of 1.0 MiB  128.0 KiB/s  ETA 0:04"
    )
    assert line("x", 1 << 20, 1 << 20, 1 << 20, 61).endswith("1:01")
    assert line("x", 100, None, 50, 2) == "x  100 B  50 B/s  0:02"
    assert line("x", 0, 0, 0, 0).startswith("x  100%")
    assert (size(1023), size(1 << 40), clock(3661)) == ("1023 B", "1.0 TiB", "1:01:01")


def test_progress_is_shown_on_a_terminal(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    shown = Screen("cp", f"web-1:{tmp_path}/big", str(tmp_path / "copy"), api=fleet.api).end()
    assert re.search(r"big  100% \[#{24}\] 3\.0 MiB of 3\.0 MiB  .*iB/s  0:\d\d", shown), shown
    shown = Screen("cp", "-q", f"web-1:{tmp_path}/big", str(tmp_path / "copy"), api=fleet.api).end()
    assert shown == ""
