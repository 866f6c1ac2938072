"""Reads a TOML file of tables of one kind, such as [issuers.company]: its size and form, the names of the tables, the
members that they may have, and those that are text.

The files of issuers and of event sinks are read with it. All errors are reported at once; each names the table and the
member, and what is expected. It does no I/O.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, ClassVar, Final

from fairlead.errors import ConfigError

SIZE_LIMIT: Final = 1 << 18
TABLES_LIMIT: Final = 32
TEXT_LIMIT: Final = 1_024
SHOWN: Final = 20
"""Errors in one message."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
NAME_RULE: Final = "1 to 63 characters of A-Z a-z 0-9 . _ -, the first a letter or digit"


class TablesReader:
    kind: ClassVar[str]
    """The table of the tables, such as `issuers`."""
    example: ClassVar[str]
    """A name of a table, for errors."""
    members: ClassVar[tuple[str, ...]]
    """What a table may have."""

    def __init__(self, source: str) -> None:
        """`source` is the name of the file in errors."""
        self._source = source
        self._errors: list[str] = []

    def tables(self, raw: bytes) -> dict[str, dict[str, Any]]:
        """The tables by name. Raises ConfigError if they cannot be read at all."""
        if len(raw) > SIZE_LIMIT:
            raise ConfigError(
                f"{self._source}: {len(raw)} bytes exceed the maximum of {SIZE_LIMIT}: expected a smaller file"
            )
        expected = f"tables such as [{self.kind}.{self.example}]"
        try:
            parsed = tomllib.loads(raw.decode())
        except ValueError as e:  # not TOML, or not UTF-8; the error quotes no value
            raise ConfigError(f"{self._source}: not valid TOML ({e}): expected {expected}") from e
        for name in parsed.keys() - {self.kind}:
            self._fault("the file", f"has the unknown member {name[:80]!r}", expected)
        tables = parsed.get(self.kind, {})
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
            self._fault(self.kind, "is not a table of tables", expected)
            return {}
        if len(tables) > TABLES_LIMIT:
            self._fault(self.kind, f"has {len(tables)} members", f"at most {TABLES_LIMIT}")
        for name, table in tables.items():
            self._check_names(name, table)
        return tables

    def finish(self) -> None:
        """Raises ConfigError with what was wrong."""
        if self._errors:
            raise ConfigError("\n".join(self._errors[:SHOWN]))

    def _check_names(self, name: str, table: dict[str, Any]) -> None:
        if NAME.match(name) is None:
            self._fault(self._where(name), "has an invalid name", NAME_RULE)
        for member in table.keys() - set(self.members):
            self._fault(self._where(name), f"has the unknown member {member[:80]!r}", ", ".join(self.members))

    def _where(self, name: str) -> str:
        return f"{self.kind}.{name[:80]}"

    def _text(self, table: dict[str, Any], member: str, where: str, default: str = "") -> str:
        value = table.get(member, default)
        if isinstance(value, str) and value.isprintable() and len(value) <= TEXT_LIMIT:
            return value
        self._fault(f"{where}.{member}", f"is not text of at most {TEXT_LIMIT} printable characters", "text in quotes")
        return default

    def _fault(self, where: str, problem: str, expected: str) -> None:
        self._errors.append(f"{self._source}: {where} {problem}: expected {expected}")
