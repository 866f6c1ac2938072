"""A Prometheus histogram that is cheap to update: an observation is a binary search and two additions.

`metrics` creates one for each histogram of a node. The histogram of prometheus_client takes two locks and compares the
bounds one after the other, and each command has six durations. This one is updated by one event loop, so it needs no
lock, and its buckets are summed up when it is scraped.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString


class Series:
    """The buckets of one value of the label."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        """The latest exemplar of each bucket."""

    def observe(self, seconds: float, trace: str = "") -> None:
        """Add one duration; `trace` is the id of its trace, for the exemplar of the bucket.

        A negative duration, which results from two different clocks, counts as 0: to Prometheus, a sum that falls would
        look like a restart.
        """
        seconds = max(seconds, 0.0)
        bucket = bisect_left(self._bounds, seconds)
        self._counts[bucket] += 1
        self._sum += seconds
        if trace:
            self._exemplars[bucket] = Exemplar({"trace_id": trace}, seconds, time.time())

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        total = 0
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for bucket, bound in enumerate((*self._bounds, float("inf"))):
            total += self._counts[bucket]
            name = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
            exemplar = self._exemplars.get(bucket)
            buckets.append((name, total) if exemplar is None else (name, total, exemplar))
        family.add_metric(labels, buckets, self._sum)


class Histogram(Collector):
    """A histogram of seconds with at most one label."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry, label: str = ""
    ) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._labels = [label] if label else []
        self._series: dict[str, Series] = {}
        if not label:
            self.observe = self.of("").observe
        registry.register(self)

    def of(self, value: str) -> Series:
        """Return the series of one value of the label. A caller that writes often keeps it."""
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = Series(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, series in self._series.items():
            series.add_to(family, [value] if self._labels else [])
        yield family
