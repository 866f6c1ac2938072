"""The contents of one tenant that are kept because something refers to them, as far as this node knows, and their size.

`ContentKeeper` has one for each tenant. Those that have expired are forgotten when they are as many as the others, or
when there is no room. It does no I/O and reads no clock. Times are in ms.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

FORGET_FROM: Final = 256
"""Contents from which on those that have expired are looked for."""


class CountedContent(NamedTuple):
    until: int
    size: int


class ContentQuota:
    __slots__ = ("_contents", "_forget_at", "_soonest", "bytes")

    def __init__(self) -> None:
        self._contents: dict[str, CountedContent] = {}
        """By digest. Some may have expired."""
        self._forget_at = FORGET_FROM
        """How many there are when those that have expired are looked for next."""
        self._soonest = inf
        """No content expires before."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._contents)

    def size_of(self, digest: str) -> int | None:
        """What a content counts; None if it does not."""
        known = self._contents.get(digest)
        return None if known is None else known.size

    def add(self, digest: str, size: int, until: int, now: int, most: int) -> bool:
        """Count a content until then, once however often it is added. False if all would be more than `most` bytes."""
        if (known := self._contents.get(digest)) is not None:
            self._contents[digest] = CountedContent(max(until, known.until), known.size)
            return True
        if len(self) >= self._forget_at or (self.bytes + size > most and now >= self._soonest):
            self._forget_expired(now)
        if self.bytes + size > most:
            return False
        self._contents[digest] = CountedContent(until, size)
        self._soonest = min(self._soonest, until)
        self.bytes += size
        return True

    def _forget_expired(self, now: int) -> None:
        self._contents = {digest: one for digest, one in self._contents.items() if one.until > now}
        self._forget_at = max(FORGET_FROM, 2 * len(self))
        self._soonest = min((one.until for one in self._contents.values()), default=inf)
        self.bytes = sum(one.size for one in self._contents.values())
