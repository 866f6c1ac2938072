"""Sums over all sessions of a node, which the sessions keep up to date as they change.

The hub creates them and each session reaches them through its context, so that a heartbeat, a scrape or a message asks
for a number and does not walk the links. `pending` is also a budget: see `session_limit`.
"""

from __future__ import annotations

from typing import Final

PENDING_LIMIT: Final = 128 << 20
"""Bytes. The default of the setting `pending_limit`: an eighth of the memory that the chart gives a pod."""


class Totals:
    """`streams` is the number of open commands on all links, `pending` the bytes that are received but not stored
    yet."""

    __slots__ = ("pending", "pending_limit", "streams")

    def __init__(self, pending_limit: int = PENDING_LIMIT) -> None:
        self.streams = 0
        self.pending = 0
        self.pending_limit = pending_limit

    @property
    def session_limit(self) -> int:
        """How many pending bytes each session may have: as many as are left of the limit.

        So n sessions that fill it settle at 1/(n + 1) of it each, and a session that has little pending is always read
        (the dynamic threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking, 1998).
        """
        return self.pending_limit - self.pending
