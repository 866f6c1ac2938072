"""The accept rate: how many new links a second, and who gets them when more want in.

Asked by the link endpoint once a token was right. One bucket for the node; each address has a share of it, and what is
left of the shares goes to whoever comes. A reserve on top of the bucket is kept for addresses below their share: so one
address may use the whole rate while it is alone, and cannot keep another out that comes for the first time. Pure: the
time comes in as an argument.
"""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 2.0
"""The accept rate may be used up for so many seconds at once."""
WINDOW: Final = 10.0
"""Seconds that an address counts as present after its last attempt."""
ADDRESSES: Final = 4_096
"""Addresses that are told apart at once, some 200 bytes each."""


class AcceptRate:
    """`rate` links a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._burst = rate * BURST_SECONDS
        self._reserve = max(rate / 2, 1.0)
        self._budget = self._burst + self._reserve
        self._filled = 0.0
        self._present: dict[str, tuple[float, float]] = {}
        """Links that an address got lately, fading at its share of the rate, and when that was true; the address that
        came last is last."""

    def take(self, key: str, now: float) -> bool:
        """Whether one more link from this address is accepted now."""
        self._budget = min(self._burst + self._reserve, self._budget + (now - self._filled) * self.rate)
        self._filled = now
        while self._present:
            first = next(iter(self._present))
            if now - self._present[first][1] <= WINDOW and len(self._present) <= ADDRESSES:
                break
            del self._present[first]
        used, at = self._present.pop(key, (0.0, now))
        # One more than are present: there is always room for a newcomer.
        share = 1 / (len(self._present) + 2)
        used = max(used - (now - at) * self.rate * share, 0.0)
        needed = 1.0 if used < self._burst * share else 1.0 + self._reserve
        taken = self._budget >= needed
        if taken:
            self._budget -= 1
            used += 1
        self._present[key] = used, now
        return taken
