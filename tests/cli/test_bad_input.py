"""Errors of the user and of the environment: the message says what, where and what to do; the exit code is the
documented one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import cli

from support.cli.processes import CliFleet

Run = Callable[..., subprocess.CompletedProcess[bytes]]
UNKNOWN = "01990000-0000-7000-8000-00000000000f"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["agents", "ls", "-l", "env in (prod"], 2, ["selector", "env in (prod", "for example"]),
        (["agents", "ls", "-l", "=x"], 2, ["selector", "for example"]),
        (["agents", "get", "nobody"], 2, ["nobody", "agents ls"]),
        (["agents", "get", "no body"], 2, ["no body", "invalid agent id"]),
        (["agents", "label", "web-1", "env"], 2, ["env", "KEY=VALUE"]),
        (["agents", "label", "web-1", "env=a b"], 2, ['invalid labels[env] "a b"', "A-Z a-z 0-9"]),
        (["agents", "label", "web-1", "-x=1"], 2, ["-x"]),
        (["agents", "label", "web-1", "--", "-x=1"], 2, ['invalid key "-x"', "the first a letter"]),
        (["agents", "label", "web-1", *(f"k{i}=1" for i in range(80))], 2, ["64"]),
        (["agents", "label", "nobody", "a=b"], 2, ["nobody", "agents ls"]),
        (["agents", "disconnect", "nobody"], 2, ["nobody"]),
        (["why", "nobody"], 2, ["nobody", "agents ls"]),
        (["exec", "nobody", "--", "true"], 2, ["nobody", "agents ls"]),
        (["shell", "nobody"], 2, ["nobody", "agents ls"]),
        (["cp", "nobody:/x", "-"], 2, ["nobody", "agents ls"]),
        (["results", UNKNOWN], 2, [UNKNOWN, "retention"]),
        (["cancel", UNKNOWN], 2, [UNKNOWN, "retention"]),
        (["cancel", "x"], 2, ["expected a UUID"]),
        (["exec", "web-1", "--", "/no/such/program"], 1, ["/no/such/program"]),
        (["exec", "--cwd", "/no/such/folder", "web-1", "--", "true"], 1, ["/no/such/folder"]),
        (["exec", "--deadline", "0.3", "web-1", "--", "sleep", "9"], 4, ["deadline", "--deadline"]),
        (["agents", "ls", "--token", "not-the-right-token"], 2, ["FAIRLEAD_TOKEN"]),
        (["completion", "tcsh"], 2, ["bash"]),
    ],
)
def test_invalid_arguments_are_usage_errors(fleet: CliFleet, args: list[str], code: int, words: list[str]) -> None:
    """In this process, because starting an interpreter for each case would take long."""
    done = CliRunner().invoke(cli, args, env={"FAIRLEAD_API": fleet.api}, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    for word in words:
        assert word in done.stderr


def ended(fleet: CliFleet, method: str, payload: dict[str, object], retain: str = "all") -> str:
    """The id of a command that its agent has ended."""
    script = f'''
import asyncio
from fairlead.client import Client
async def main():
    async with Client("{fleet.api}", "development-platform-token") as client:
        async with client.command("web-1", "{method}", {payload!r}, retain="{retain}") as command:
            await command.wait()
        print(command.id)
asyncio.run(main())
'''
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_an_offset_beyond_the_end_is_refused(fleet: CliFleet, run: Run) -> None:
    command = ended(fleet, "exec", {"argv": ["echo", "one"]})
    for flags in ([], ["--follow"]):
        done = run("results", command, "--from", "1000", *flags, api=fleet)
        assert (done.stdout, done.returncode) == (b"", 2)
        assert b"from=1000 is out of range" in done.stderr
        assert b"shows all stored results" in done.stderr
    done = run("results", command, "--from", "-1", api=fleet)
    assert done.returncode == 2
    assert b"--from" in done.stderr


def test_trimmed_results_are_reported(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    """A window is read once: whoever asks for its beginning again gets the error that it is gone."""
    (tmp_path / "big").write_bytes(bytes(6 << 20))
    command = ended(fleet, "file.get", {"path": f"{tmp_path}/big"}, retain="window")
    done = run("results", command, api=fleet)
    assert done.returncode == 2
    assert b"start at the offset" in done.stderr


def test_a_closed_pipe_ends_the_command_quietly(fleet: CliFleet) -> None:
    line = f"FAIRLEAD_API={fleet.api} {sys.executable} -P -m fairlead agents ls -o json | head -c 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{")
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["exec web-1 -- echo x", "agents ls"])
def test_a_full_disk_behind_stdout_is_reported(fleet: CliFleet, command: str) -> None:
    line = f"FAIRLEAD_API={fleet.api} {sys.executable} -P -m fairlead {command} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
