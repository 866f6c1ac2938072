"""What the benchmarks print, and the medians that they write: progress to stderr, tables in Markdown to stdout."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n" + markdown(head, rows))


def medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and the least and the greatest as `…_low` and `…_high`."""
    found: dict[str, float] = {}
    for figure in turns[0]:
        values = [turn[figure] for turn in turns]
        found |= {figure: statistics.median(values), f"{figure}_low": min(values), f"{figure}_high": max(values)}
    return found
