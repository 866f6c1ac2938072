"""Sums over all sessions of a node, kept up to date by the sessions as they change.

Made by the hub and reached by each session through its handler, so that a beat, a scrape or a message asks for a
number and walks no links. `pending` is also a budget: see `room`.
"""

from __future__ import annotations

from typing import Final

PENDING_LIMIT: Final = 128 << 20
"""Bytes, the default of the setting `pending_limit`: an eighth of the memory that the chart gives a pod."""


class Totals:
    """`streams`: open commands on all links. `pending`: bytes that were received and are not yet stored."""

    __slots__ = ("pending", "pending_limit", "streams")

    def __init__(self, pending_limit: int = PENDING_LIMIT) -> None:
        self.streams = 0
        self.pending = 0
        self.pending_limit = pending_limit

    @property
    def room(self) -> int:
        """How many pending bytes each session may have, all being equal: as much as is left of the limit. So n
        sessions that fill it come to rest at 1/(n + 1) of it each, and one that has little is always read on
        (the dynamic threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking, 1998).
        """
        return self.pending_limit - self.pending
