"""Chooses the nodes that do a piece of work of the whole fleet, without communication between the nodes.

`routing` calls it for work that any node could do: taking due targets from the deadline queue and sweeping the index.
Each node ranks all living nodes for a piece of work by rendezvous hashing (highest random weight). Nodes with the same
table of nodes therefore choose the same ones, and a table that differs by one node changes only the work of that node.
If the tables of two nodes differ, both may do a piece of work, or neither. That is harmless: the work may be done
twice, and its name changes with time, so that other nodes are chosen the next time. The module is pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from hashlib import blake2b


def choose(work: str, leases: Sequence[str], count: int = 1) -> list[str]:
    """The `count` highest ranked of `leases` for `work`, in order of rank; all of them if there are no more."""
    return heapq.nlargest(count, leases, key=lambda lease: blake2b(f"{work} {lease}".encode(), digest_size=8).digest())
