"""`fairlead methods` and arguments that are checked before anything is sent, against a real gateway."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from fairlead.cli.runs.schedules import _chosen
from fairlead.client.schedules import ScheduleInfo
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
    assert b"KEY:=JSON" not in many.stderr, "another notation would not make the name known"
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
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    for method in (("script",), ("file.put", "path=/a")):
        done = run("run", *method, "--agents", "web-1", "--file", str(tmp_path / "large"), api=api)
        assert done.returncode == 2
        assert f"--file {tmp_path / 'large'} is too large: expected at most 1 MiB".encode() in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("exec", "uname"), b"'uname': expected KEY=TEXT or KEY:=JSON (the program of exec goes after --)"),
        (("exec", 'argv:=["x"]', "--", "x"), b"argv is given twice, also after --"),
        (("exec", "--json", "{}", "--", "x"), b"--json beside KEY=TEXT or -- PROGRAM"),
        (("sys.info", "--", "x"), b"sys.info takes no program after --"),
        (("script", "--", "--now"), b"script needs a file: expected --file FILE"),
        (("file.put", "path=/a"), b"file.put needs a file: expected --file FILE"),
        (
            ("file.put", "path=/a", "content:=true", f"sha256={'0' * 64}"),
            b"file.put needs a file: expected --file FILE",
        ),
        (("sys.info", "--batch", "0"), b"'0': expected a number of targets from 1 on"),
    ],
)
def test_wrong_words_of_a_run_are_explained(api: str, run: Run, words: tuple[str, ...], problem: bytes) -> None:
    done = run("run", "--agents", "web-1", *words, api=api)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_a_method_that_waits_for_input_gets_some(api: str, run: Run) -> None:
    done = run("call", "web-1", "file.put", "path=/a", api=api)
    assert (done.returncode, b"`cat FILE | fairlead call -i web-1 file.put" in done.stderr) == (2, True), done.stderr
    words = "file.put", "path=/a", "content:=true", f"sha256={'0' * 64}"
    for command in (("call", "web-1", *words), ("call", "-i", "web-1", *words), ("run", "--agents", "web-1", *words)):
        asked = run(*command, api=api)
        assert (asked.returncode, b"file.put needs a file: expected --file FILE" in asked.stderr) == (2, True), asked


def test_who_selects_nobody_is_told_how_to_see_who_matches(api: str, run: Run) -> None:
    done = run("run", "sys.info", "-l", "env=nowhere", api=api)
    assert (done.returncode, b"`fairlead agents ls -l SELECTOR` shows who matches" in done.stderr) == (2, True)
    planned = run("run", "sys.info", "-l", "env=nowhere", "--dry-run", api=api)
    assert (planned.returncode, b"no agent would be a target" in planned.stderr) == (0, True)


def test_a_schedule_has_a_file_and_is_removed_by_its_name(api: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "fix.sh").write_text("true")
    file = str(tmp_path / "fix.sh")
    words = ("schedules", "add", "nightly", "script", "-l", "*", "--cron", "0 2 * * *", "--file", file)
    for wanted in ("nightly", ""):
        id = run(*words, api=api).stdout.decode().strip()
        table = run("schedules", "ls", api=api).stdout.decode().splitlines()
        assert table[0].split() == ["ID", "NAME", "CRON", "ZONE", "METHOD", "NEXT", "LAST"]
        assert "0 2 * * *  UTC" in table[1], "without its zone, the expression says no time"
        twice = run(*words, api=api)
        assert twice.returncode == 2
        assert f"you have a schedule nightly already, which is {id}" in twice.stderr.decode()
        assert run("schedules", "rm", wanted or id, api=api).stdout.decode() == f"removed nightly ({id})\n"
    missing = run("schedules", "rm", "nightly", api=api)
    assert (missing.returncode, b"there is no schedule 'nightly'" in missing.stderr) == (2, True)


def test_a_name_that_several_callers_use_is_told_with_the_ids() -> None:
    ids = [f"0192f1b0-0000-7000-8000-00000000000{n}" for n in range(2)]
    known = [ScheduleInfo(id, "nightly", "0 2 * * *", "UTC", "skip", "work", "*", f"token:{id[-1]}") for id in ids]
    with pytest.raises(click.UsageError) as unclear:
        _chosen("nightly", known)
    assert f"2 schedules have the name 'nightly': name one by its id: {known[0].id}, {known[1].id}" in str(
        unclear.value
    )
    assert _chosen(known[1].id, known)[0] == known[1].id


def test_the_id_of_a_run_is_called_so(api: str, run: Run) -> None:
    for wish in ("show", "results", "cancel", "pause", "retry"):
        done = run("runs", wish, "nope", api=api)
        assert b"invalid run id 'nope'" in done.stderr
        assert b"`fairlead runs ls` lists runs" in done.stderr
