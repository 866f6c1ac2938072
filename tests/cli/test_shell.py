"""`fairlead shell` on a real terminal with the built-in agent; and the state of the terminal afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cli.terminal.escapes import EscapeParser

from support.cli.processes import CliFleet
from support.cli.relay import Relay
from support.cli.terminal import Screen
from support.waiting import WAIT

Run = Callable[..., subprocess.CompletedProcess[bytes]]
SH = ("--", "sh")
"""A shell without a prompt."""


def test_a_shell_passes_on_size_keys_and_exit_code(fleet: CliFleet, screen: Callable[..., Screen]) -> None:
    shell = screen(fleet.api, "shell", "--env", "GREETING=hello", "--cwd", "/", "web-1", *SH)
    shell.until(rb"[#$] ")
    assert shell.raw
    shell.type(b"stty size; echo $GREETING-$TERM-$(pwd)\r")
    shell.until(rb"30 100\r\n")
    shell.until(rb"hello-vt100-/\r\n")
    shell.resize(61, 17)
    shell.type(b"until [ \"$(stty size)\" = '17 61' ]; do sleep 0.05; done; echo re''sized\r")
    shell.until(rb"resized\r\n")
    # Ctrl-C is a character here: it ends the sleep, not us.
    shell.type(b"sleep 1000; echo af''terwards $?\r")
    shell.until(rb"sleep 1000")
    shell.type(b"\x03")
    shell.type(b"echo st''ill-here\r")
    shell.until(rb"still-here\r\n")
    shell.type(b"exit 7\r")
    assert shell.wait() == 7
    assert shell.restored


def test_tilde_dot_ends_the_shell(
    fleet: CliFleet, screen: Callable[..., Screen], wait_until: Callable[[Callable[[], bool]], None], run: Run
) -> None:
    shell = screen(fleet.api, "shell", "web-1", *SH)
    shell.until(rb"[#$] ")
    shell.type(b"echo a~.b\r")
    shell.until(rb"a~\.b\r\n")
    shell.type(b"~?")
    shell.until(rb"~~ types one ~")
    shell.type(b"~~\x15echo ti''lde\r")
    shell.until(rb"tilde\r\n")
    shell.type(b"~.")
    assert shell.wait() == 0
    assert b"cancelled the program" in shell.shown
    assert shell.restored
    wait_until(lambda: b"0 open" in run("agents", "get", "web-1", api=fleet).stdout)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_the_cli_restores_the_terminal(
    fleet: CliFleet, screen: Callable[..., Screen], number: signal.Signals
) -> None:
    shell = screen(fleet.api, "shell", "web-1", *SH)
    shell.until(rb"[#$] ")
    assert shell.raw
    shell.process.send_signal(number)
    assert shell.wait() == 128 + number
    assert shell.restored


def test_an_error_during_the_shell_restores_the_terminal(
    fleet: CliFleet, screen: Callable[..., Screen], relay_to: Callable[[str], Relay], run: Run
) -> None:
    """The stream is cut, and what answers afterwards is not a gateway, so that there is no point in retrying. The
    program cannot be cancelled either; a message says how to do that later."""
    relay = relay_to(fleet.api)
    shell = screen(f"http://127.0.0.1:{relay.port}", "shell", "web-1", *SH)
    shell.until(rb"[#$] ")
    assert shell.raw
    relay.spoil()
    assert shell.wait() == 1
    assert b"HTTP 500" in shell.shown
    assert shell.restored
    advice = re.search(rb"try `fairlead (cancel \S+)`", shell.shown)
    assert advice, shell.shown
    assert run(*advice[1].decode().split(), api=fleet).returncode == 0


def test_an_error_before_the_shell_opens_leaves_the_terminal_unchanged(
    fleet: CliFleet, screen: Callable[..., Screen]
) -> None:
    shell = screen(fleet.api, "shell", "nobody")
    assert shell.wait() == 2
    assert b"agents ls" in shell.shown
    assert shell.restored
    shell = screen(fleet.api, "shell", "web-1", "--", "/no/such/program")
    assert shell.wait() == 1
    assert b"/no/such/program" in shell.shown
    assert shell.restored


def test_the_terminal_is_raw_again_after_stop_and_fg(fleet: CliFleet, screen: Callable[..., Screen]) -> None:
    shell = screen(fleet.api, "shell", "web-1", *SH)
    shell.until(rb"[#$] ")
    shell.process.send_signal(signal.SIGSTOP)
    termios.tcsetattr(shell.theirs, termios.TCSANOW, shell.before)  # as the user's own shell does
    shell.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + WAIT
    while not shell.raw:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shell.type(b"exit 0\r")
    assert shell.wait() == 0
    assert shell.restored


def test_piped_input_is_typed_without_a_terminal(fleet: CliFleet, run: Run) -> None:
    done = run("shell", "web-1", *SH, api=fleet, input=b"echo $((6*7)) >&2; exit 5\n")
    assert b"42\r\n" in done.stdout, "a terminal has one stream for both"
    assert done.returncode == 5, done.stderr


def test_a_long_paste_arrives_completely(fleet: CliFleet, run: Run, tmp_path: Path) -> None:
    """More than one chunk, through a terminal that takes 4 KiB of a line at most."""
    lines = b"".join(b"%06d\n" % i for i in range(20_000))
    script = f"stty -echo; echo ready; cat > {tmp_path / 'pasted'}\n".encode()
    done = run("shell", "web-1", *SH, api=fleet, input=script + lines)
    assert done.returncode == 0, done.stderr
    pasted = (tmp_path / "pasted").read_bytes()
    assert pasted.endswith(b"019999\n")
    assert lines.endswith(pasted[-100_000:])


@pytest.mark.parametrize(
    ("typed", "sent", "left"),
    [
        ([b"ls\r", b"~."], b"ls\r", True),
        ([b"~", b"."], b"", True),
        ([b"~~.\r"], b"~.\r", False),
        ([b"a~.\r"], b"a~.\r", False),
        ([b"~x"], b"~x", False),
        ([b"\r~?", b"~."], b"\r", True),
        ([b"~?a~."], b"a~.", False),
    ],
)
def test_escape_sequences_are_recognized_after_a_newline(typed: list[bytes], sent: bytes, left: bool) -> None:
    escape = EscapeParser()
    assert b"".join(map(escape.feed, typed)) == sent
    assert escape.left is left
