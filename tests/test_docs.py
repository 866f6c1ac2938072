"""The documentation: what it names exists, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
FENCE = re.compile(r"(?ms)^```.*?^```[ ]*$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_every_line_of_the_failure_matrix_names_tests_that_exist() -> None:
    lines = (ROOT / "docs" / "delivery.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| fault "))
    matrix = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        matrix.append(line)
    assert len(matrix) >= 20
    for line in matrix:
        named = NAMED.findall(line)
        assert named, line
        for file, test in named:
            found = list((ROOT / "tests").rglob(file))
            assert any(f"def {test}(" in path.read_text() for path in found), f"{file}::{test}"


def _markdown() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=30,
    ).stdout
    return [path for name in listing.decode().split("\0") if name and (path := ROOT / name).is_file()]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as repository viewers make them."""
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#{1,6} (.+)$", FENCE.sub("", page.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = 0
        while anchor in found:
            again += 1
            anchor = f"{base}-{again}"
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", _markdown(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(there), f"{target}: {there.name} has no such heading"


def test_a_package_index_gets_a_readme_without_links_into_the_repository() -> None:
    command = [sys.executable, "-I", "-m", "hatchling", "metadata", "readme"]
    readme = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "# Fairlead" in readme
    assert "`docs/agent.md`" in readme, "links become the names of their files"
    assert [target for target in LINK.findall(readme) if not target.startswith("https://")] == []
