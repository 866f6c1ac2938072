"""What a swarm has counted: one `Counters` for each process, sent to the parent as JSON and added up there.

Latencies are kept as counts in buckets that are five per cent wide, whatever their number: some hundred integers
that can be added over processes, where a list of all would grow with the load and averages of quantiles would lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

WIDTH = math.log(1.05)
"""Of a bucket, as a ratio: what is told of a latency is right to 2.5 per cent."""


@dataclass(slots=True)
class LatencyHistogram:
    """A histogram with logarithmic buckets of microseconds, and the longest as it was."""

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
        """In seconds: the middle of the bucket that holds the q-th; None while there is nothing."""
        rank = math.ceil(self.count * q)
        for bucket in sorted(self.buckets):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return min(math.exp((bucket + 0.5) * WIDTH) / 1e6, self.longest)
        return None


@dataclass(slots=True)
class Counters:
    """Counts since the start; `linked` is of now."""

    linked: int = 0
    once: int = 0
    """Agents that were welcomed at least once."""
    attempts: int = 0
    welcomes: int = 0
    lost: int = 0
    """Links that ended though neither their profile nor a drain of the gateway meant it."""
    moved: int = 0
    """Links that ended because the gateway asked for it: drains and the like."""
    gone: int = 0
    """Agents that were closed with a code after which the protocol forbids to come back."""
    missing: int = 0
    """Agents without a link at the end that should have one."""
    refused: dict[str, int] = field(default_factory=dict)
    """Attempts that ended before welcome: by HTTP status, `close CODE`, or `unreachable`."""
    closed: dict[str, int] = field(default_factory=dict)
    """Links that ended after welcome, by close code; those that the swarm itself ended are not among them."""
    reason: str = ""
    """Of the last attempt that was refused, in words."""
    silenced: int = 0
    """Half-open links that the gateway has ended, as it should."""
    unnoticed: int = 0
    """Half-open links that it has not ended in time."""
    drops: int = 0
    """Links that a storm has dropped."""
    beats: int = 0
    echoes: int = 0
    commands: int = 0
    duplicates: int = 0
    answered: int = 0
    """Commands whose end the gateway has stored."""
    output_bytes: int = 0
    events: int = 0
    events_stored: int = 0
    events_skipped: int = 0
    """Not made, because too many waited to be stored."""
    violations: int = 0
    """Times that the gateway broke the protocol."""
    ramp: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From the swarm's start to each agent's first welcome."""
    dial: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From when an attempt was due to the upgraded connection."""
    connect: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From when an attempt was due to welcome."""
    back: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From a storm's drop to the welcome after it."""
    rtt: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Of heartbeats."""
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    """How late the swarm's own timer was: what it adds to the latencies."""
    memory: int = 0
    """Bytes of its own that the process has more than before its first agent."""
    footprint: int = 0
    """Bytes of its own that the process has."""
    cpu: float = 0.0
    """Seconds."""

    def merge(self, other: Counters) -> None:
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, LatencyHistogram):
                mine.merge(theirs)
            elif isinstance(mine, dict):
                for key, count in theirs.items():
                    mine[key] = mine.get(key, 0) + count
            elif isinstance(mine, str):
                setattr(self, one.name, theirs or mine)
            else:
                setattr(self, one.name, mine + theirs)


def count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
