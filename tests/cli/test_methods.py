"""`fairlead methods` and arguments that are checked before anything is sent, against a real gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.methods.library import LIBRARY

from support.cli.processes import gateway

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a gateway without agents."""
    part, _, api, _ = gateway(tmp_path_factory.mktemp("methods"))
    try:
        yield api
    finally:
        part.stop()


def test_the_library_is_listed_and_shown(api: str, run: Run) -> None:
    table = run("methods", "ls", api=api).stdout.decode().splitlines()
    assert table[0].split() == ["METHOD", "EFFECT", "ALLOWED", "ARGUMENTS"]
    assert [line.split()[0] for line in table[1:]] == list(LIBRARY)
    (line,) = [line for line in table if line.startswith("proc.signal")]
    assert line.split() == ["proc.signal", "changes", "yes", "pid", "[signal]", "[started]"]
    shown = run("methods", "show", "log.tail", api=api).stdout.decode()
    assert "lines: integer, 10 unless given: how many of the last lines" in shown
    assert "bytes: integer: how many were sent" in shown
    listed = json.loads(run("methods", "ls", "-o", "json", api=api).stdout)["methods"]
    for one in listed:
        declared = LIBRARY[one["name"]].schemas()
        assert (one["arguments"], one["result"]) == (declared["arguments"], declared.get("result"))
    missing = run("methods", "show", "backup", api=api)
    assert b"no method 'backup'" in missing.stderr


def test_wrong_arguments_are_told_before_anything_is_sent(api: str, run: Run) -> None:
    """There is no agent `web-1`, and nobody hears of that before the arguments fit."""
    wrong = run("call", "web-1", "log.tail", "path=/a", "lines=5", api=api)
    assert b'log.tail: invalid argument lines "5": expected a whole number' in wrong.stderr
    right = run("call", "web-1", "log.tail", "path=/a", "lines:=5", api=api)
    assert b"web-1" in right.stderr
    unchecked = run("call", "--unchecked", "web-1", "log.tail", "lines=5", api=api)
    assert b"web-1" in unchecked.stderr
    assert b"(KEY:=JSON passes what is not a text)" in wrong.stderr
    many = run("run", "service.restart", "--agents", "web-1", "name=x", api=api)
    assert b'service.restart: unknown argument "name": expected unit' in many.stderr
    nightly = run("schedules", "add", "x", "exec", "-l", "*", "--cron", "0 0 * * *", "argv=ls", api=api)
    assert b'exec: invalid argument argv "ls": expected a list of strings' in nightly.stderr
    assert run("runs", "ls", "-o", "name", api=api).stdout == b""


def test_a_file_goes_with_a_method_that_takes_one(api: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "fix.sh").write_text("true")
    beside = run("run", "exec", "--agents", "web-1", "--file", str(tmp_path / "fix.sh"), 'argv:=["x"]', api=api)
    assert (beside.returncode, b"exec takes no --file" in beside.stderr) == (2, True), beside.stderr
    for command in (("run", "script", "--agents", "web-1"), ("call", "web-1", "script", "cwd=/")):
        without = run(*command, api=api)
        assert (without.returncode, b"script needs a file" in without.stderr) == (2, True), without.stderr


def test_the_id_of_a_run_is_called_so(api: str, run: Run) -> None:
    for wish in ("show", "results", "cancel", "pause", "retry"):
        done = run("runs", wish, "nope", api=api)
        assert b"invalid run id 'nope'" in done.stderr
        assert b"`fairlead runs ls` lists runs" in done.stderr
