"""`fairlead call` and `fairlead nodes`: any method with arguments, and the list of nodes, against a real fleet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli.processes import CliFleet
from support.cli.scripted_api import ScriptedApi

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_a_method_runs_with_its_arguments(fleet: CliFleet, run: Run) -> None:
    done = run(
        "call", "web-1", "exec", 'argv:=["sh","-c","echo $GREETING; exit 3"]', 'env:={"GREETING":"hi"}', api=fleet
    )
    assert done.stdout.startswith(b"hi\n"), done.stderr
    assert json.loads(done.stdout[3:])["exit_code"] == 3
    assert done.returncode == 3
    info = run("call", "web-1", "sys.info", api=fleet)
    assert info.returncode == 0, info.stderr
    assert "os" in json.loads(info.stdout)


def test_a_program_goes_after_two_hyphens(fleet: CliFleet, run: Run) -> None:
    done = run(
        "call",
        "web-1",
        "exec",
        'env:={"GREETING":"hi"}',
        "--",
        "sh",
        "-c",
        "echo $GREETING $1",
        "--deadline",
        api=fleet,
    )
    assert done.stdout.startswith(b"hi\n"), done
    many = run("run", "exec", "-l", "*", "--", "sh", "-c", "echo $0", "--", api=fleet)
    assert b"== 1 agent ok: web-1\n--\n" in many.stdout, many


def test_a_file_goes_with_a_script(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    (tmp_path / "fix.sh").write_text("echo fixed $1")
    for words in (("call", "web-1", "script"), ("run", "script", "-l", "*")):
        done = run(*words, "--file", str(tmp_path / "fix.sh"), "--", "--now", api=fleet)
        assert b"fixed --now\n" in done.stdout, done


def test_a_file_is_copied_to_many_agents(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    (tmp_path / "app.conf").write_bytes(b"a=1\n" * 50_000)
    source, copy = str(tmp_path / "app.conf"), tmp_path / "copy.conf"
    for words in (("run", "file.put", "-l", "*"), ("call", "web-1", "file.put")):
        done = run(*words, "--file", source, f"path={copy}", "mode=0640", api=fleet)
        assert done.returncode == 0, done
        assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == ((tmp_path / "app.conf").read_bytes(), 0o640)
        copy.unlink()


def test_each_row_is_a_line(fleet: CliFleet, run: Run) -> None:
    done = run("call", "web-1", "proc.list", api=fleet)
    assert done.returncode == 0, done.stderr
    assert all("pid" in json.loads(line) for line in done.stdout.splitlines())


def test_arguments_may_be_one_document(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    document = json.dumps({"argv": ["cat"], "stdin": True})
    (tmp_path / "arguments.json").write_text(document)
    for given in (document, f"@{tmp_path / 'arguments.json'}"):
        done = run("call", "-i", "web-1", "exec", "--json", given, api=fleet, input=b"from stdin\n")
        assert done.stdout.startswith(b"from stdin\n"), done.stderr
        assert done.returncode == 0
    done = run("call", "web-1", "exec", "--json", "@-", api=fleet, input=b'{"argv":["echo","x"]}')
    assert done.stdout.startswith(b"x\n"), done.stderr


def test_the_post_has_every_option(api: ScriptedApi, run: Run) -> None:
    api.finish("ok", {"done": True})
    options = ["--deadline", "5", "--queue", "9", "--lane", "bulk", "--retry", "safe"]
    done = run("call", *options, "agent-1", "backup.start", "volume=/srv", "full:=true", "note=a=b", api=api)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"done": True}
    ((_, _, _, body),) = api.streams
    assert json.loads(body) == {
        "agent": "agent-1",
        "method": "backup.start",
        "payload": {"volume": "/srv", "full": True, "note": "a=b"},
        "deadline": 5.0,
        "lane": "bulk",
        "retry": "safe",
        "on_offline": {"queue": 9.0},
    }


def test_json_output_is_the_apis_stream(fleet: CliFleet, run: Run) -> None:
    done = run("call", "-o", "json", "web-1", "sys.info", api=fleet)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["end"]["state"] == "ok"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("volume",), b"'volume': expected KEY=TEXT or KEY:=JSON"),
        (("=x",), b"'=x': expected KEY=TEXT or KEY:=JSON"),
        ((":=1",), b"':=1': expected KEY=TEXT or KEY:=JSON"),
        (("a=1", "a:=2"), b"'a' is given twice"),
        (("a:=yes",), b"the value of 'a' is not JSON"),
        (("--json", "{", ), b"--json is not JSON"),
        (("--json", "{}", "a=1"), b"expected one of them"),
        (("--json", "@/nowhere/at/all"), b"cannot read /nowhere/at/all: No such file or directory"),
        (("--json", "@-", "-i"), b"both read stdin"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_explained(run: Run, words: tuple[str, ...], problem: bytes) -> None:
    done = run("call", "web-1", "work", *words)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_an_unknown_method_fails_with_the_agents_words(fleet: CliFleet, run: Run) -> None:
    done = run("call", "web-1", "backup.start", api=fleet)
    assert done.returncode == 1
    assert b"backup.start" in done.stderr


def test_a_star_selects_all_agents(fleet: CliFleet, run: Run) -> None:
    for words in (["agents", "ls", "-o", "name"], ["run", "sys.info", "--dry-run"], ["run", "exec", "--dry-run"]):
        assert run(*words, "-l", "*", api=fleet).stdout == b"web-1\n"
    assert run("events", "-l", "*", api=fleet).returncode == 0


def test_who_speaks_tls_to_a_plain_port_is_told_so(fleet: CliFleet, run: Run) -> None:
    done = run("agents", "ls", "--api", fleet.api.replace("http://", "https://"), api=fleet)
    assert (done.returncode, b"speaks no TLS: is it http://" in done.stderr) == (3, True), done.stderr


def test_a_label_without_a_value_is_refused(fleet: CliFleet, run: Run) -> None:
    done = run("agents", "label", "web-1", "env=", api=fleet)
    assert (done.returncode, b"'env=' has no value: env=VALUE, or env- removes it" in done.stderr) == (2, True)


def test_nodes_are_listed(fleet: CliFleet, run: Run) -> None:
    done = run("nodes", "ls", api=fleet)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.decode().splitlines()
    assert head.split()[:5] == ["NODE", "STATE", "LINKS", "CAPACITY", "COMMANDS"]
    assert row.split()[1] == "serving"
    (one,) = json.loads(run("nodes", "ls", "-o", "json", api=fleet).stdout)["nodes"]
    assert one["name"] == row.split()[0]
    assert run("nodes", "ls", "-o", "name", api=fleet).stdout.decode().split() == [one["name"]]
    none = run("nodes", "ls", "--state", "draining", api=fleet)
    assert none.returncode == 0
    assert b"no node is draining" in none.stderr
