"""docs/cli.md agrees with the command line: its commands, its exit codes, its transcript."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fairlead.cli import exit_codes, main

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{path} {name}", command
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_is_documented() -> None:
    table = PAGE[: PAGE.index("## Where")]
    for path, _ in leaves(main.cli, "fairlead"):
        words = path.split()
        assert f"`{path}" in table or f"`{' '.join(words[1:])}`" in table, path


def test_help_of_every_command_explains_its_options() -> None:
    for path, command in leaves(main.cli, "fairlead"):
        assert command.help or command.short_help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name not in ("output", "lane", "start", "state"):
                assert parameter.help, f"{path} {parameter.name}"


def test_the_exit_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \|$", PAGE, re.MULTILINE)
    meaning = {int(code): text for code, text in rows}
    assert set(meaning) == {
        exit_codes.OK, exit_codes.FAILED, exit_codes.USAGE, exit_codes.UNAVAILABLE, exit_codes.DEADLINE,
        exit_codes.INTERRUPTED,
    }  # fmt: skip
    assert "offline" in meaning[exit_codes.UNAVAILABLE]
    assert "deadline" in meaning[exit_codes.DEADLINE]
    shown = " ".join(CliRunner().invoke(main.cli, ["--help"]).stdout.split())
    for code in meaning:
        assert re.search(rf"\b{code} ", shown[shown.index("Exit codes") :]), code


def test_flags_named_in_the_page_exist() -> None:
    options = [option for _, one in leaves(main.cli, "") for option in one.params]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    prose = PAGE[: PAGE.index("## The first ten minutes")]
    for flag in re.findall(r"`(--[a-z-]+)", prose):
        assert flag in known | {"--help", "--version"}, flag
    assert "exec" in main.COMMANDS


@pytest.mark.timeout(150)
def test_the_transcript_is_the_output_of_a_demo() -> None:
    script = Path(__file__).with_name("transcript.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=140)
    assert done.returncode == 0, done.stdout + done.stderr
