"""A histogram of latencies: counts in buckets that are five per cent wide, whatever their number.

These are some hundred integers, which can be added over processes; a list of all latencies would grow with the load,
and averages of quantiles would be wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WIDTH = math.log(1.05)
"""The width of a bucket, as the logarithm of a ratio: reported latencies are accurate to 2.5 per cent."""


@dataclass(slots=True)
class LatencyHistogram:
    """Logarithmic buckets of microseconds, and the exact longest latency."""

    buckets: dict[int, int] = field(default_factory=dict)
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        bucket = int(math.log(max(1.0, seconds * 1e6)) / WIDTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        if seconds > self.longest:
            self.longest = seconds

    def merge(self, other: LatencyHistogram) -> None:
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.longest = max(self.longest, other.longest)

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def quantile(self, q: float) -> float | None:
        """In seconds: the middle of the bucket with the quantile `q`; None while the histogram is empty."""
        rank = math.ceil(self.count * q)
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return min(math.exp((bucket + 0.5) * WIDTH) / 1e6, self.longest)
        return None
