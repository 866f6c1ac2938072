"""The command line itself: usage errors, unreachable gateways, `agents ls`, and invalid settings of `serve`."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fairlead.cli.main import cli
from fairlead.version import __version__

from support.cli.scripted_api import ScriptedApi

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nothing"], "No such command"),
        (["exec", "agent-1"], "PROGRAM"),
        (["exec", "agent-1", "--"], "no program"),
        (["exec", "agent 1", "--", "ls"], "invalid agent id"),
        (["exec", "--env", "=x", "agent-1", "ls"], "NAME=VALUE"),
        (["exec", "--deadline", "0", "agent-1", "ls"], "deadline"),
        (["exec", "--api", "gateway:8081", "--token", "t", "agent-1", "ls"], "http://"),
        (["exec", "--api", "http://[::1", "agent-1", "ls"], "http"),
        (["agents", "ls", "--api", "ftp://x"], "'ftp://x' does not begin with http:// or https://"),
        (["agents", "ls", "--api", "gateway:8081"], "expected http://HOST[:PORT] or https://HOST[:PORT]"),
        (["agents", "ls", "--api", "https://gateway,ftp://x"], "'ftp://x' does not begin with"),
        (["agents", "ls", "--api", "http://"], "names no host"),
        (["agents", "ls", "--api", "http:///v1"], "names no host"),
        (["agents", "ls", "--api", "http://gate way"], "names no host"),
        (["agents", "ls", "--api", "http://127.0.0.1:99999"], "1 to 65535"),
        (["agents", "ls", "--api", "http://me:secret@gateway"], "more than host, port and path"),
        (["agents", "ls", "--api", ""], "does not begin with http:// or https://"),
        (["exec", "--api", "http://192.0.2.1", "agent-1", "ls"], "FAIRLEAD_TOKEN"),
        (["results", "abc"], "expected a UUID"),
        (["agents", "ls", "-o", "xml"], "table"),
        (["agent", "run", "--id", "a", "--url", "http://x"], "ws://"),
        (["agent", "run", "--id", "a", "--url", "wss://gateway.example"], "--token-file"),
        (["agent", "run", "--id", "a", "--token-file", "/nowhere/t"], "cannot be read"),
        (["agent", "run", "--id", "a", "--token", "t", "--token-file", "/nowhere/t"], "only one"),
        (["demo", "--port", "70000"], "port"),
        (["demo", "--port", "many"], "'many' is not a valid integer"),
        (["exec", "--deadline", "soon", "agent-1", "ls"], "'soon' is not a valid number."),
        (["schedules", "add", "x", "exec", "--agents", "a"], "a schedule has no --agents: expected -l SELECTOR"),
        (["--api", "http://gateway:8081", "agents", "ls"], "--api goes after the command: fairlead agents ls --api …"),
        (["--token", "t", "why", "agent-1"], "--token goes after the command: fairlead why --token …"),
        (["agents", "--api", "http://gateway:8081", "ls"], "after the command: fairlead agents ls --api …"),
        (["--nonsense", "agents", "ls"], "No such option"),
    ],
)
def test_usage_errors_exit_with_2_and_say_what_is_wrong(run: Run, args: list[str], words: str) -> None:
    done = run(*args)
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert words in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_help_lists_the_exit_codes(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "3 unavailable" in " ".join(done.stdout.decode().split())


def helps(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from helps(one, (*path, name))


def test_a_start_imports_its_own_command_alone() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fairlead.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['exec', '--help']).exit_code == 0\n"
        "print(*sorted(name for name in sys.modules if name.startswith('fairlead.cli.commands.')))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["fairlead.cli.commands.exec"]


@pytest.mark.parametrize(("path", "command"), list(helps(cli)))
def test_help_is_complete(path: tuple[str, ...], command: click.Command) -> None:
    """No sentence is cut off, and every option says what it is for."""
    text = CliRunner().invoke(cli, [*path, "--help"], catch_exceptions=False, terminal_width=100).stdout
    assert not re.search(r"[a-z]\.\.\.$", text, re.MULTILINE), text
    assert "[default: ]" not in text
    for param in command.params:
        assert not isinstance(param, click.Option) or param.help, f"{path}: {param.name} has no help"


def test_version_is_printed(run: Run) -> None:
    for flag in ("version", "--version"):
        assert run(flag).stdout.decode().strip() == __version__


def test_an_unreachable_gateway_exits_with_3_and_says_what_to_do(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for args in (["agents", "ls"], ["exec", "agent-1", "--", "ls"]):
        done = run(*args, env={"FAIRLEAD_API": url})
        assert done.returncode == 3
        assert url in done.stderr.decode()
        assert "`fairlead demo`" in done.stderr.decode()


def dead_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_the_first_api_that_can_be_reached_is_used(run: Run, api: ScriptedApi) -> None:
    api.pages = [{"agents": [{"id": "a", "state": "online"}], "cursor": None}]
    env = {"FAIRLEAD_API": f"{dead_url()}, {api.url},{dead_url()},"}
    done = run("agents", "ls", "-o", "name", env=env)
    assert (done.stdout, done.stderr, done.returncode) == (b"a\n", b"", 0)
    assert len(api.cursors) == 1


def test_all_addresses_are_named_when_no_api_can_be_reached(run: Run) -> None:
    one, two = dead_url(), dead_url()
    done = run("agents", "ls", "--api", f"{one},{two}")
    assert done.returncode == 3
    assert one in done.stderr.decode()
    assert two in done.stderr.decode()


def test_the_development_token_goes_to_no_other_machine_of_several(run: Run, api: ScriptedApi) -> None:
    done = run("agents", "ls", "--api", f"{api.url},http://192.0.2.1")
    assert done.returncode == 2
    assert "http://192.0.2.1: set FAIRLEAD_TOKEN" in done.stderr.decode()


def test_agents_ls_reads_all_pages(run: Run, api: ScriptedApi) -> None:
    api.pages = [
        {
            "agents": [
                {
                    "id": "a",
                    "state": "online",
                    "node": "n1",
                    "since": "1970-01-01T00:00:01.500Z",
                    "facts": {"os": "linux"},
                }
            ],
            "cursor": "1",
        },
        {
            "agents": [
                {
                    "id": "b",
                    "state": "offline",
                    "node": None,
                    "since": None,
                    "facts": {},
                    "why": "closed\x1b[2J",
                }
            ]
        },
    ]
    done = run("agents", "ls", api=api)
    head, first, second = done.stdout.decode().splitlines()
    assert head.split() == ["AGENT", "STATE", "NODE", "SINCE", "WHY"]
    assert first.split() == ["a", "online", "n1", "1970-01-01T00:00:01.500Z"]
    assert second.split() == ["b", "offline", "-", "-", "closed?[2J"]
    assert run("agents", "ls", "-o", "name", api=api).stdout == b"a\nb\n"
    rows = json.loads(run("agents", "ls", "-o", "json", api=api).stdout)["agents"]
    assert [row["id"] for row in rows] == ["a", "b"]
    assert rows[0]["facts"] == {"os": "linux"}
    assert api.cursors == [None, "1"] * 3


def test_agents_ls_is_sorted_by_id(run: Run, api: ScriptedApi) -> None:
    api.pages = [
        {"agents": [{"id": one, "state": "online"} for one in ids], "cursor": cursor}
        for ids, cursor in ((["web-2", "db-1"], "1"), (["web-1", "app"], None))
    ]
    assert run("agents", "ls", "-o", "name", api=api).stdout.split() == [b"app", b"db-1", b"web-1", b"web-2"]


def test_agents_ls_without_agents_says_how_to_start_one(run: Run, api: ScriptedApi) -> None:
    api.pages = [{"agents": [], "cursor": None}]
    done = run("agents", "ls", api=api)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert b"fairlead agent run" in done.stderr


def test_serve_reports_all_faulty_settings_and_starts_nothing(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text("capacity = 0\n")
    done = run(
        "serve",
        "--config",
        str(config),
        "--link-port",
        "http",
        env={"FAIRLEAD_NODE": "-", "FAIRLEAD_WINDO": "1"},
    )
    assert done.returncode == 2
    talk = done.stderr.decode()
    assert "4 errors" in talk
    for words in (
        f"file {config}: capacity",
        "flag --link-port: 'http'",
        "environment FAIRLEAD_NODE",
        "FAIRLEAD_WINDOW?",
    ):
        assert words in talk


def test_serve_has_a_flag_for_each_setting_but_none_for_a_token(run: Run) -> None:
    text = run("serve", "--help").stdout.decode()
    for flag in ("--redis", "--capacity", "--drain-timeout", "--agent-token-file", "--platform-token-file"):
        assert flag in text
    assert "--agent-token " not in text
