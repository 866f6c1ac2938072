"""Whoever leaves a command cancels it: through requests that are lost, before its id is known, after an error."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from support.cli.scripted_api import COMMAND, ScriptedApi, problem
from support.cli.terminal import Screen
from support.waiting import WAIT

ARGUMENTS = {"shell": ("shell", "agent-1"), "cp": ("cp", "-", "agent-1:/file")}
Terminal = Callable[..., Screen]


def test_tilde_dot_repeats_a_cancel_that_the_gateway_could_not_take(api: ScriptedApi, screen: Terminal) -> None:
    api.may_end.clear()
    api.add_output(b"$ ", "pty")
    api.cancel_refusals = [problem(503, "node_busy", "draining", True), problem(503, "bus_unavailable", "away", True)]
    shell = screen(api.url, *ARGUMENTS["shell"])
    shell.until(rb"\$ ")
    shell.type(b"~.")
    assert shell.wait() == 0
    assert api.cancel_refusals == []
    assert api.cancelled.is_set()
    assert b"cancelled the program" in shell.shown


def test_a_cancel_that_is_of_no_use_is_reported_with_what_to_do(api: ScriptedApi, screen: Terminal) -> None:
    api.may_end.clear()
    api.add_output(b"$ ", "pty")
    api.cancel_refusals = [problem(403, "not_allowed", "not yours", False)]
    shell = screen(api.url, *ARGUMENTS["shell"])
    shell.until(rb"\$ ")
    shell.type(b"~.")
    assert shell.wait() == 0
    assert b"not yours" in shell.shown
    assert f"fairlead cancel {COMMAND}".encode() in shell.shown
    assert b"cancelled the program" not in shell.shown


@pytest.mark.parametrize("command", ARGUMENTS)
def test_ctrl_c_before_the_id_is_known_cancels_the_command(api: ScriptedApi, screen: Terminal, command: str) -> None:
    """The post was received, and the agent may be at work already."""
    api.may_end.clear()
    api.answering.clear()
    terminal = screen(api.url, *ARGUMENTS[command])
    assert api.posted.wait(WAIT)
    terminal.process.send_signal(signal.SIGINT)
    assert not api.cancelled.is_set(), "its id is not known yet"
    api.answering.set()
    assert api.cancelled.wait(WAIT)
    assert terminal.wait() == 130


def test_an_error_during_the_shell_cancels_the_program(api: ScriptedApi, screen: Terminal) -> None:
    """Nobody would see what it does until its deadline, eight hours later."""
    api.may_end.clear()
    api.add_output(b"$ ", "pty")
    api.cuts = [2]
    api.results_refusal = problem(410, "record_lost", "the results are gone", False)
    shell = screen(api.url, *ARGUMENTS["shell"])
    assert api.cancelled.wait(WAIT)
    assert shell.wait() != 0
    assert b"the results are gone" in shell.shown
    assert json.loads(api.streams[0][3])["deadline"] == 8 * 3600
    assert shell.restored
