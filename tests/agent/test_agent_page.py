"""docs/agent.md agrees with the code: it has every setting, variable, error code, method and argument, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fairlead.agent.builtin.contents.kept_contents import KeptContents
from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.methods import METHODS, MethodContext
from fairlead.agent.builtin.options import Options
from fairlead.agent.host.fact_reader import FactReader
from fairlead.agent.settings import variable
from fairlead.agent.settings.table import SETTINGS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "agent.md").read_text()
SOURCES = ROOT / "gateway" / "fairlead" / "agent"
FROM_THE_PROTOCOL = {
    "unknown_method", "invalid_arguments", "busy", "handler_failed", "deadline", "cancelled", "results_gap",
    "outcome_unknown", "journal_failed", "journal_full",
}  # fmt: skip


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_page_has_a_row_for_each_setting() -> None:
    table = {row[0].strip("`"): row for row in rows("Configuration")}
    assert list(table) == list(SETTINGS)
    for key, row in table.items():
        assert f"`{variable(key)}`" in row[2], key
        assert row[4], key
        if row[1]:
            flag = row[1].split("`")[1]
            assert flag == f"--{'fact' if key == 'facts' else key.replace('_', '-')}"


def raised() -> set[str]:
    """Codes in the sources of the built-in methods."""
    found: set[str] = set()
    for path in (SOURCES / "builtin").rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'CommandError\(\s*"([a-z_]+)"', text))
        if path.name == "os_errors.py":
            found |= set(re.findall(r'(?:= |: |\()\(?"([a-z]+_[a-z_]+)", "', text))
    return found


def test_page_has_a_row_for_each_error_code() -> None:
    codes = raised()
    assert {"path_forbidden", "disk_full", "not_found", "io_failed", "pty_gone"} <= codes, "the search finds nothing"
    documented = {row[0].strip("`") for row in rows("Errors")}
    assert codes - {"handler_failed"} <= documented
    assert documented <= codes | FROM_THE_PROTOCOL


def test_page_names_tests_that_exist_for_each_attack() -> None:
    sources = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    table = [row for row in rows("What it may do") if len(row) == 4]
    assert len(table) >= 20
    named = [name for row in table for name in re.findall(r"`(test_\w+)`", row[3])]
    assert len(named) >= 15
    for name in named:
        assert f"def {name}(" in sources, name
    for row in table:
        assert "test_" in row[3] or "nothing" in row[2] or "quota" in row[2], row


@pytest.mark.parametrize("method", METHODS)
def test_page_has_a_section_for_each_method_with_its_arguments(method: str) -> None:
    assert f"### `{method}`\n" in PAGE
    assert any(f"`{method}`" in row[0] for row in rows("What it may do")), "no row in *What it may do*"
    if method == "exec":
        section = (ROOT / "docs" / "protocol.md").read_text().split("**Method `exec`**")[1].split("\n## ")[0]
    else:
        section = PAGE.split(f"### `{method}`\n", 1)[1].split("\n### ")[0].split("\n## ")[0]
    disk = DiskThreads()
    kept, facts = KeptContents(disk, None), FactReader({}, print)
    handler = METHODS[method](MethodContext(Options(), disk, PathGuard(), PathGuard(), kept, facts.read_again))
    for name in inspect.signature(handler).parameters:
        if name not in ("self", "command"):
            assert f"`{name}`" in section or f"| {name} |" in section, name
