"""Which nodes do what has to be done once for the whole fleet, without asking one another.

Called by `routing` for work that every node could do: looking for what is due, sweeping the index. Each node ranks all
living nodes for a piece of work by rendezvous hashing (highest random weight), so nodes with the same table of nodes
choose the same ones, and a table that differs by one node changes only the work of that node. Two nodes whose tables
differ may both do a piece of work, or neither may: the work is harmless when done twice, and its name changes with
time, so that others are chosen for it the next time. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from hashlib import blake2b


def choose(work: str, leases: Sequence[str], count: int = 1) -> list[str]:
    """The `count` of `leases` that do `work`, the first in rank first; all of them when there are no more."""
    return heapq.nlargest(count, leases, key=lambda lease: blake2b(f"{work} {lease}".encode(), digest_size=8).digest())
