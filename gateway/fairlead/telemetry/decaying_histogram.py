"""A histogram of recent durations in some hundred bytes, in which old observations weigh less and less.

Sessions keep one for their round trips and one for each stage of their commands. Buckets are a quarter of an octave
wide, so a quantile is accurate to 10 %. When a bucket reaches 255, all counts are halved, so that old observations fade
without a clock. A list of the last durations would need five times the memory and have no p99.
"""

from __future__ import annotations

from bisect import bisect_left

LEAST = 0.0001
"""Seconds. All shorter durations share one bucket, because no round trip over a network is shorter."""
PER_OCTAVE = 4
SIZES = 81
"""The number of buckets: twenty octaves, up to 105 s, which is longer than a link may be silent."""
_BOUNDS = tuple([LEAST * 2 ** (i / PER_OCTAVE) for i in range(SIZES - 1)])
"""The longest duration of each bucket but the last, which has no bound."""
_HALF = bytes(i >> 1 for i in range(256))
_BLANK = bytes(SIZES)


def new_histogram() -> bytearray:
    return bytearray(_BLANK)


def size_of(seconds: float) -> int:
    """The number of the bucket of a duration."""
    return bisect_left(_BOUNDS, seconds)


def observe(counts: bytearray, seconds: float) -> None:
    """Add one duration to the histogram."""
    size = size_of(seconds)
    if counts[size] == 255:
        counts[:] = counts.translate(_HALF)
    counts[size] += 1


def pack_histogram(counts: bytearray) -> bytes:
    """The histogram without its empty ends: some ten bytes for the round trips of one link, which are much alike."""
    kept = counts.rstrip(b"\0")
    used = kept.lstrip(b"\0")
    return bytes((len(kept) - len(used),)) + used


def unpack_histogram(packed: bytes) -> bytearray:
    """The histogram that `pack_histogram` packed."""
    counts, first = new_histogram(), packed[0]
    counts[first : first + len(packed) - 1] = packed[1:]
    return counts


def quantile(counts: bytearray | None, share: float) -> float | None:
    """The duration in seconds that `share` of those in the histogram do not exceed; None if it is empty."""
    if counts is None or not (total := sum(counts)):
        return None
    above = total - max(1, -int(-share * total // 1))
    # The search begins with the slowest bucket: callers ask for high quantiles, and few durations are slow.
    size = len(counts.rstrip(b"\0")) - 1
    above -= counts[size]
    while above >= 0 and size:
        size -= 1
        above -= counts[size]
    return LEAST if size == 0 else LEAST * 2 ** ((size - 0.5) / PER_OCTAVE)
