"""The files of an audit log: `NODE.NNNNNNNNNNNN.jsonl`, numbered by their first line, and `NODE.head`.

The newest file grows until it is large enough; then the chain goes on in the next one. `NODE.head` names the last line
that was written, so that lines that are missing at the end are noticed. The files of a folder may belong to several
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.audit.records import LINE_LIMIT, Head

_NAME: Final = re.compile(r"(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\.(?P<first>[0-9]{12})\.jsonl")


def segment_path(folder: Path, node: str, first: int) -> Path:
    return folder / f"{node}.{first:012d}.jsonl"


def head_path(folder: Path, node: str) -> Path:
    return folder / f"{node}.head"


def exported_path(folder: Path, node: str) -> Path:
    """The file with the last line that a collector has accepted."""
    return folder / f"{node}.exported"


def segments(folder: Path) -> dict[str, list[Path]]:
    """The files of each node, the oldest first. Raises OSError."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if (name := _NAME.fullmatch(path.name)) is not None:
            found.setdefault(name["node"], []).append(path)
    return found


def first_number(path: Path) -> int:
    """The number of a file's first line, by its name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found["first"])


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """The lines of a file: number from 1, the text, and whether it has its line end. Raises OSError."""
    with path.open("rb") as file:
        for number in range(1, 1 << 62):
            raw = file.readline(LINE_LIMIT + 1)
            if not raw:
                return
            yield number, raw.removesuffix(b"\n"), raw.endswith(b"\n")


def read_head(path: Path) -> Head | None:
    """The head in a file; None if there is none, or it cannot be read."""
    try:
        return Head.parse(path.read_text("ascii"))
    except (OSError, UnicodeDecodeError):
        return None
