"""One setting, and constructors for the usual kinds: whole numbers, numbers, text, paths, choices and switches.

A table of settings is a mapping from names to these. Values arrive as text (from the environment and from flags) or as
TOML has typed them, and both are parsed alike. A setting does not know where its value came from: `layers` adds that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class InvalidValue(Exception):
    """The value of a setting is not valid. The message continues a sentence that begins with the value: "is not a whole
    number", "is out of range".
    """


@dataclass(frozen=True, slots=True)
class Setting:
    """`parse` returns the value or raises InvalidValue; `expected` says in words what it takes."""

    parse: Callable[[object], object]
    expected: str
    help: str
    secret: bool = False
    """The value is never shown, not even in an error."""
    in_file: bool = True
    """Whether the setting may be in the configuration file."""
    flag: str = ""
    """The name of the flag, where it is not the name of the setting."""
    is_table: bool = False
    """Whether the setting is a table of its own in the file."""


def whole_number(low: int, high: int, help: str) -> Setting:
    def parse(raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise InvalidValue("is not a whole number")
        if not low <= raw <= high:
            raise InvalidValue("is out of range")
        return raw

    return Setting(parse, f"a whole number from {low} to {high}", help)


def number(low: float, high: float, help: str) -> Setting:
    def parse(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise InvalidValue("is not a number")
        try:
            value = float(raw)
        except (ValueError, OverflowError) as e:
            raise InvalidValue("is not a number") from e
        if not math.isfinite(value) or not low <= value <= high:
            raise InvalidValue("is out of range")
        return value

    return Setting(parse, f"a number from {low:.10g} to {high:.10g}", help)


def text(pattern: str, expected: str, help: str, secret: bool = False, *, in_file: bool = True) -> Setting:
    """Text that matches the regular expression `pattern` as a whole."""
    compiled = re.compile(pattern)

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or compiled.fullmatch(raw) is None:
            raise InvalidValue("is not valid")
        return raw

    return Setting(parse, expected, help, secret, in_file)


def choice(words: tuple[str, ...], help: str) -> Setting:
    return text("|".join(map(re.escape, words)), f"{', '.join(words[:-1])} or {words[-1]}", help)


def path(help: str, expected: str = "the path of a file or folder") -> Setting:
    def parse(raw: object) -> Path:
        if not isinstance(raw, str | Path) or not str(raw) or "\0" in str(raw):
            raise InvalidValue("is not a path")
        return Path(raw)

    return Setting(parse, expected, help)


def switch(help: str) -> Setting:
    """On or off: a boolean of TOML, or `true` or `false` as text."""

    def parse(raw: object) -> bool:
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        if not isinstance(raw, bool):
            raise InvalidValue("is not true or false")
        return raw

    return Setting(parse, "true or false", help)
