"""What a swarm counts and measures. Each worker has one `Counters`; the coordinator gets it as JSON and adds it up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

WIDTH = math.log(1.05)
"""The width of a bucket, as the logarithm of a ratio: reported latencies are accurate to 2.5 per cent."""


@dataclass(slots=True)
class LatencyHistogram:
    """Logarithmic buckets of microseconds, five per cent wide, and the exact longest latency.

    They are some hundred integers, which can be added over processes. A list of all latencies would grow with the load,
    and averages of quantiles would be wrong.
    """

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


@dataclass(slots=True)
class Counters:
    """Counts since the start, except `linked`, which is the current number."""

    linked: int = 0
    agents_welcomed: int = 0
    """Agents that were welcomed at least once."""
    attempts: int = 0
    welcomes: int = 0
    lost: int = 0
    """Links that ended although neither their profile nor a drain of the gateway asked for it."""
    moved: int = 0
    """Links that ended because the gateway asked for it, by a drain for instance."""
    rejected: int = 0
    """Agents that were closed with a code after which the protocol forbids reconnecting (4500 and above)."""
    missing: int = 0
    """Agents that should have a link at the end and have none."""
    refused: dict[str, int] = field(default_factory=dict)
    """Attempts that ended before welcome: by HTTP status, `close CODE`, or `unreachable`."""
    closed: dict[str, int] = field(default_factory=dict)
    """Links that ended after welcome, by close code, without those that the swarm itself ended."""
    last_refusal: str = ""
    """Why the last attempt was refused, in words."""
    half_open_ended: int = 0
    """Half-open links that the gateway has ended in time, as it should."""
    half_open_unnoticed: int = 0
    """Half-open links that the gateway has not ended in time."""
    storm_drops: int = 0
    """Links that a storm has dropped."""
    heartbeats: int = 0
    heartbeat_answers: int = 0
    commands: int = 0
    duplicates: int = 0
    answered: int = 0
    """Commands whose end the gateway has stored."""
    output_bytes: int = 0
    events: int = 0
    events_stored: int = 0
    events_skipped: int = 0
    """Events that were not emitted, because too many were waiting to be stored."""
    violations: int = 0
    """How often the gateway violated the protocol."""
    ramp: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From the swarm's start to each agent's first welcome."""
    dial: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From when an attempt was due to the upgraded connection."""
    connect: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From when an attempt was due to welcome."""
    storm_return: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From a storm's drop to the welcome after it."""
    rtt: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Of heartbeats."""
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    """How late the swarm's own timer was, which is part of the measured latencies."""
    memory_grown: int = 0
    """Growth of the process's private memory since before its first agent, in bytes."""
    memory: int = 0
    """Bytes of private memory of the process."""
    cpu: float = 0.0
    """Seconds of CPU time."""

    def merge(self, other: Counters) -> None:
        for one in fields(self):
            own, added = getattr(self, one.name), getattr(other, one.name)
            if isinstance(own, LatencyHistogram):
                own.merge(added)
            elif isinstance(own, dict):
                for key, count in added.items():
                    own[key] = own.get(key, 0) + count
            elif isinstance(own, str):
                setattr(self, one.name, added or own)
            else:
                setattr(self, one.name, own + added)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker prints on each line. `last`: the worker is done."""

    counters: Counters
    last: bool


def count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
