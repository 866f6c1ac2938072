"""What one node has served since its process started: counters, by which two revisions of the gateway are compared.

`routing` fills them and writes them into the node's row, and the operator reads them there. The module is pure. All
counters only grow, so that what happened within a time is the difference of two readings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

BOUNDS = tuple(0.001 * 2 ** (step / 2) for step in range(33))
"""Upper bounds of the buckets of overheads in seconds, from 1 ms to 65 s. Two buckets span a factor of two, which is as
fine as revisions are compared."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counters since the start of a process, or their growth within a time."""

    accepted: int = 0
    """Links that were welcomed."""
    rejected: int = 0
    """Upgrades that were refused for another reason than load: host, token or subprotocol."""
    lost: int = 0
    """Links that ended although neither end wanted that."""
    ended: int = 0
    """Commands that agents of this node ended, and those that did not end before their deadline."""
    failed: int = 0
    """The commands of `ended` that failed or did not end in time."""
    overheads: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    """The number of commands in each bucket of the time that the gateway added to them: from the doorbell to the
    agent's ack, and from the agent's end to the storage of its results. The last bucket is above the last bound."""

    @classmethod
    def parse(cls, row: Mapping[bytes, bytes]) -> Traffic | None:
        """Parse a node's row; None if the node is of a version that does not count."""
        if b"overheads" not in row:
            return None
        counts = {name: int(row.get(name.encode(), b"0")) for name in COUNTERS}
        found = [int(count) for count in row[b"overheads"].split(b",")]
        return cls(overheads=tuple(found) if len(found) == len(BOUNDS) + 1 else cls().overheads, **counts)

    def __add__(self, other: Traffic) -> Traffic:
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTERS}
        return Traffic(overheads=tuple(map(int.__add__, self.overheads, other.overheads)), **counts)

    def since(self, earlier: Traffic) -> Traffic:
        """The growth since an earlier reading of the same node. A process that has started anew began at 0."""
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in COUNTERS}
        overheads = tuple(map(int.__sub__, self.overheads, earlier.overheads))
        return self if min(*counts.values(), *overheads) < 0 else Traffic(overheads=overheads, **counts)

    @property
    def attempts(self) -> int:
        """Upgrades of agents that were not refused for load."""
        return self.accepted + self.rejected

    @property
    def timed(self) -> int:
        """Commands whose overhead is known."""
        return sum(self.overheads)

    def overhead(self, share: float) -> float:
        """The bound that at least `share` (0 to 1) of the commands kept to, in seconds; the last bound if there is
        no such bound, and the first one if there were no commands."""
        least, count = share * self.timed, 0
        for bound, found in zip(BOUNDS, self.overheads, strict=False):
            count += found
            if count >= least:
                return bound
        return BOUNDS[-1]

    def slower_than(self, bound: float) -> int:
        """Commands whose overhead was greater than `bound`, or than the next greater one of BOUNDS."""
        return sum(self.overheads[bisect_left(BOUNDS, bound) + 1 :])


COUNTERS = ("accepted", "rejected", "lost", "ended", "failed")
"""The fields that are single numbers, in a row and in `Traffic`."""
