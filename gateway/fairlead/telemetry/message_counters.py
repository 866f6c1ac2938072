"""Messages and bytes of one node's links, counted as plain numbers and handed to Prometheus when it asks.

Written by sessions for each message: a bound Prometheus counter takes a lock and costs four times as much. Its labels
are the protocol's own words, so they are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class MessageCounters(Collector):
    def __init__(self) -> None:
        self._read: defaultdict[type, int] = defaultdict(int)
        self._wrote: defaultdict[type, int] = defaultdict(int)
        self._read_bytes = 0
        self._wrote_bytes = 0

    def read(self, message: object, size: int) -> None:
        """One came from an agent; None stands for one that was ignored."""
        self._read[type(message)] += 1
        self._read_bytes += size

    def wrote(self, message: object, size: int) -> None:
        """One went to an agent."""
        self._wrote[type(message)] += 1
        self._wrote_bytes += size

    def collect(self) -> Iterator[Metric]:
        messages = CounterMetricFamily(
            "fairlead_messages", "Messages of links, by kind", labels=["direction", "type"]
        )  # fmt: skip
        for direction, counts in (("in", self._read), ("out", self._wrote)):
            for kind, count in counts.items():
                messages.add_metric([direction, "ignored" if kind is type(None) else kind.__name__.lower()], count)
        size = CounterMetricFamily("fairlead_message_bytes", "Encoded bytes of messages", labels=["direction"])
        size.add_metric(["in"], self._read_bytes)
        size.add_metric(["out"], self._wrote_bytes)
        yield messages
        yield size
