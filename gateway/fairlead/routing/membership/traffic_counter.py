"""Counts what this node serves, for the comparison of two revisions: see `fleet.reports.traffic`.

The telemetry recorder fills it, and the load report writes it into the node's row with each heartbeat.
"""

from __future__ import annotations

from bisect import bisect_left

from fairlead.fleet.reports.traffic import BOUNDS


class TrafficCounter:
    __slots__ = ("_overheads", "ended", "failed", "lost")

    def __init__(self) -> None:
        self.lost = 0
        self.ended = 0
        self.failed = 0
        self._overheads = [0] * (len(BOUNDS) + 1)

    def add_command(self, failed: bool, stages: tuple[float | None, ...] = ()) -> None:
        """Count a command that is over. `stages` are its durations, in the order of `STAGES`, as far as they are
        known."""
        self.ended += 1
        self.failed += failed
        if stages:
            deliver, ack, _, _, store = stages
            if deliver is not None and ack is not None and store is not None:
                self._overheads[bisect_left(BOUNDS, deliver + ack + store)] += 1

    def fields(self) -> dict[str, str | int | float]:
        """The fields of the node's row."""
        return {
            "lost": self.lost,
            "ended": self.ended,
            "failed": self.failed,
            "overheads": ",".join(map(str, self._overheads)),
        }
