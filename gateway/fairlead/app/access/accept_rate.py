"""The accept rate: how many new links a node accepts each second, and which addresses get them when more ask.

The link endpoint asks after it has checked the token. The node has one token bucket. Each address has a share of it,
and whatever others leave unused of their shares is available to all. A reserve on top of the bucket is kept for
addresses below their share, so that one address can use the whole rate while it is alone but cannot keep a new address
out. It is pure: the time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

BURST_SECONDS: Final = 2.0
"""The bucket holds as many links as the rate allows in this time."""
WINDOW: Final = 10.0
"""Seconds for which an address counts as present after its last attempt."""
ADDRESSES: Final = 4_096
"""Maximum number of addresses that are counted separately, at some 200 bytes each."""


class AcceptRate:
    """The token bucket of a node, for `rate` new links per second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._burst = rate * BURST_SECONDS
        self._reserve = max(rate / 2, 1.0)
        self._budget = self._burst + self._reserve
        self._filled = 0.0
        self._present: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The number of recent links of each address, which decays at the address's share of the rate, and the time it
        was computed. The most recent address comes last. An OrderedDict, because a dict finds its oldest entry only by
        passing over all entries deleted before it."""

    def available(self, now: float) -> bool:
        """Whether an address that is within its share could take a link now."""
        return self._budget + (now - self._filled) * self.rate >= 1.0 + self._reserve

    def take(self, key: str, now: float) -> bool:
        """Take one link for this address; False if it is not accepted now."""
        self._budget = min(self._burst + self._reserve, self._budget + (now - self._filled) * self.rate)
        self._filled = now
        while self._present:
            first = next(iter(self._present))
            if now - self._present[first][1] <= WINDOW and len(self._present) <= ADDRESSES:
                break
            del self._present[first]
        used, at = self._present.pop(key, (0.0, now))
        # Divide by one more than are present, so that there is always room for a new address.
        share = 1 / (len(self._present) + 2)
        used = max(used - (now - at) * self.rate * share, 0.0)
        needed = 1.0 if used < self._burst * share else 1.0 + self._reserve
        taken = self._budget >= needed
        if taken:
            self._budget -= 1
            used += 1
        self._present[key] = used, now
        return taken
