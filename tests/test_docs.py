"""The documentation names tests as its proofs: they must be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


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
