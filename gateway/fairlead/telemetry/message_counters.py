"""Counts the messages and bytes of one node's links as plain integers, and exports them when Prometheus scrapes.

Sessions update it for each message. A bound Prometheus counter takes a lock and costs four times as much. The labels
are the message types of the protocol, so there are few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class MessageCounters(Collector):
    def __init__(self) -> None:
        self._received: defaultdict[type, int] = defaultdict(int)
        self._sent: defaultdict[type, int] = defaultdict(int)
        self._received_bytes = 0
        self._sent_bytes = 0

    def received(self, message: object, size: int) -> None:
        """Count a message from an agent. None stands for a message that was ignored."""
        self._received[type(message)] += 1
        self._received_bytes += size

    def sent(self, message: object, size: int) -> None:
        """Count a message to an agent."""
        self._sent[type(message)] += 1
        self._sent_bytes += size

    def collect(self) -> Iterator[Metric]:
        messages = CounterMetricFamily(
            "fairlead_messages", "Messages of links, by kind", labels=["direction", "type"]
        )  # fmt: skip
        for direction, counts in (("in", self._received), ("out", self._sent)):
            for kind, count in counts.items():
                messages.add_metric([direction, "ignored" if kind is type(None) else kind.__name__.lower()], count)
        size = CounterMetricFamily("fairlead_message_bytes", "Encoded bytes of messages", labels=["direction"])
        size.add_metric(["in"], self._received_bytes)
        size.add_metric(["out"], self._sent_bytes)
        yield messages
        yield size
