"""Prints an answer in each format of --output: a table, a wide table, JSON, YAML, or names only.

Used by the commands that show something. Colours are for a terminal, and only without NO_COLOR; a pipe receives the
same words without them, so that other programs can cut and search the output. Text from an agent is made printable in
tables and names, and escaped in JSON and YAML, because it must not control the user's terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import click

from fairlead.text import plain

F = TypeVar("F", bound=Callable[..., object])

FORMS = ("table", "wide", "json", "yaml", "name")
_STATE_COLOURS = {"online": "green", "away": "yellow", "offline": "red"}
_STATE = re.compile(r"(?<=[ :])(online|away|offline)(?= |$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class View:
    """One answer in every format: the names, the data for JSON and YAML, and the lines of the table and of the wide
    table.

    Lines are plain text. A word in them that is the state of an agent is coloured on a terminal.
    """

    names: Sequence[str]
    data: object
    lines: Sequence[str]
    wide: Sequence[str]


def output_option(command: F) -> F:
    """Add --output with all forms of a `View`."""
    return _output_option(FORMS)(command)


def report_option(command: F) -> F:
    """Add --output for an answer that has no names: a table for people, or JSON for programs."""
    return _output_option(("table", "json"))(command)


def _output_option(forms: Sequence[str]) -> Callable[[F], F]:
    return click.option(
        "-o", "--output", type=click.Choice(forms), default="table", show_default=True, help="Output format."
    )


def render(view: View, form: str, one_line: bool = False) -> str:
    """The text of `view` in that form. `one_line` writes JSON in one line, for documents that follow each other."""
    if form == "json":
        return as_json(view.data, None if one_line else 2) + "\n"
    if form == "yaml":
        return as_yaml(view.data)
    lines = view.names if form == "name" else view.wide if form == "wide" else view.lines
    text = "".join(f"{plain(line)}\n" for line in lines)
    return text if form == "name" or not has_colours() else _STATE.sub(_colour, text)


def _colour(found: re.Match[str]) -> str:
    return click.style(found[0], fg=_STATE_COLOURS[found[0]])


def has_colours() -> bool:
    """Whether stdout is a terminal whose user wants colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_json(data: object, indent: int | None = 2) -> str:
    """JSON without a final newline. Unprintable characters are escaped, so that they do not reach the terminal."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def as_yaml(data: object) -> str:
    """One YAML document without its `---`. Unprintable characters are escaped, as in JSON."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        # A text with line ends is written in one line, with escapes: its lines must not be mistaken for lines of the
        # document.
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)

    Dumper.add_representer(str, represent_text)

    def dump(unicode: bool) -> str:
        return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=unicode, width=math.inf)

    text = dump(True)
    return text if text.replace("\n", "").isprintable() else dump(False)


def format_close(code: str | None, reason: str | None) -> str:
    """How a link ended: its close code with the meaning, and the reason unless that says the same; "" if neither is
    known."""
    if not code or not reason:
        return code or reason or ""
    return code if reason in code else f"{code}: {reason}"
