"""Shell completion: what is offered, and each shell's script run in that shell, loaded as docs/cli.md says."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli.processes import CliFleet, environment
from support.cli.terminal import Screen

Run = Callable[..., subprocess.CompletedProcess[bytes]]
WaitUntil = Callable[[Callable[[], object]], object]


def complete(run: Run, words: str, count: int, api: object, env: dict[str, str] | None = None) -> list[str]:
    asked = {"_FAIRLEAD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    done = run(api=api, env={**asked, **(env or {})})
    assert done.stderr == b""
    return [one.partition(",")[2] for one in done.stdout.decode().split()]


def test_completion_offers_commands_formats_and_agents(
    fleet: CliFleet, run: Run, wait_until: Callable[..., object]
) -> None:
    assert complete(run, "fairlead ag", 1, fleet) == ["agent", "agents"]
    assert "yaml" in complete(run, "fairlead agents ls -o ", 4, fleet)
    for words in ("exec", "shell", "why", "agents get", "agents label"):
        typed = f"fairlead {words} web"
        # On a machine that is too busy for the deadline nothing is offered: then the user presses TAB again.
        wait_until(lambda typed=typed: complete(run, typed, len(typed.split()) - 1, fleet) == ["web-1"])
    wait_until(lambda: complete(run, "fairlead cp web", 2, fleet) == ["web-1:/"])
    typed = f"fairlead why --api {fleet.api} web"
    wait_until(lambda: complete(run, typed, 4, "http://127.0.0.1:1") == ["web-1"])


def test_completion_gives_up_soon_when_the_gateway_is_silent(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert complete(run, "fairlead why web", 2, f"http://127.0.0.1:{silent.getsockname()[1]}") == []
        assert time.monotonic() - began < 10
    assert complete(run, "fairlead why web", 2, "http://gateway.invalid") == [], "no token for it either"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert f"_FAIRLEAD_COMPLETE={shell}_complete".encode() in script


@pytest.fixture
def with_fairlead(fleet: CliFleet, tmp_path: Path) -> dict[str, str]:
    """An environment in which `fairlead` is a command, as after `pip install`."""
    command = tmp_path / "fairlead"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m fairlead "$@"\n')
    command.chmod(0o755)
    return {**environment(fleet.api), "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def shell(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine: its completion script was not played")
    return name


def test_bash_completes_with_the_script(with_fairlead: dict[str, str], wait_until: WaitUntil) -> None:
    """The shell itself calls the function that the script has defined."""
    load = 'eval "$(fairlead completion bash)"'
    ask = 'COMP_WORDS=(fairlead why we); COMP_CWORD=2; _fairlead_completion fairlead; echo "${COMPREPLY[@]}"'

    def press_tab() -> list[str]:
        line = [shell("bash"), "-c", f"{load}\n{ask}"]
        return subprocess.run(line, capture_output=True, env=with_fairlead, check=True, text=True).stdout.split()

    wait_until(lambda: press_tab() == ["web-1"])


def test_fish_completes_with_the_script(with_fairlead: dict[str, str], wait_until: WaitUntil) -> None:
    """`complete -C` is what fish does at TAB."""

    def press_tab(typed: str) -> list[str]:
        line = [shell("fish"), "--no-config", "-c", f"fairlead completion fish | source; complete -C '{typed}'"]
        done = subprocess.run(line, capture_output=True, env=with_fairlead, check=True, text=True)
        assert done.stderr == ""
        return [offered.partition("\t")[0] for offered in done.stdout.splitlines()]

    wait_until(lambda: press_tab("fairlead why we") == ["web-1"])
    assert press_tab("fairlead agents l") == ["label", "ls"]
    assert press_tab("fairlead agents ls -o y") == ["yaml"]


@pytest.fixture
def zsh(with_fairlead: dict[str, str], tmp_path: Path) -> Iterator[Screen]:
    """Interactive, with completion loaded as the document says, and Ctrl-O to tell what stands on its line."""
    (tmp_path / ".zshrc").write_text(
        "PS1='ready '\nautoload -U compinit\ncompinit -u -D\neval \"$(fairlead completion zsh)\"\n"
        "tell() { print -r -- \"<<$BUFFER>>\" }\nzle -N tell\nbindkey '^O' tell\n"
    )
    screen = Screen([shell("zsh"), "-d", "-i"], {**with_fairlead, "ZDOTDIR": str(tmp_path), "TERM": "xterm"})
    yield screen
    screen.close()


def test_zsh_completes_with_the_script(zsh: Screen, wait_until: WaitUntil) -> None:
    zsh.until(rb"ready ")

    def press_tab(typed: bytes) -> bytes:
        zsh.type(b"\x15" + typed + b"\t\x0f")
        return zsh.until(rb"<<(.*?)>>")[1]

    wait_until(lambda: press_tab(b"fairlead why we") == b"fairlead why web-1 ")
    assert press_tab(b"fairlead agents disc") == b"fairlead agents disconnect "
    assert press_tab(b"fairlead agents ls -o y") == b"fairlead agents ls -o yaml "
