"""The size of a run of run.py: full for a record, small for a first look, tiny for a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    agents: int = 10_000
    """Idle at once, registered or plain, when bytes and accepts are measured."""
    crowd: int = 15_000
    """Where the full collection is measured."""
    alone: int = 3_000
    together: int = 10_000
    """Commands with one and with 64 in flight."""
    cycles: int = 10
    cycle: int = 4_000
    messages: int = 20_000
    rounds: int = 3
    """How often each server has its turn; the figures are medians."""
    clients: tuple[tuple[int, int], ...] = ((100, 10), (1_000, 3), (10_000, 1))
    """Of a connect-and-timestamp round, and how many such rounds make a turn."""
    fetch: bool = True
    """Whether peers that are not here may be fetched and built: a test fetches nothing."""


SCALES = {
    "full": Scale(),
    "quick": Scale(2_000, 3_000, 500, 2_000, 3, 1_000, 5_000, 1, ((100, 2), (1_000, 1))),
    "smoke": Scale(50, 60, 20, 100, 2, 20, 100, 1, ((10, 1), (30, 1)), fetch=False),
}
