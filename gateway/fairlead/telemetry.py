"""The metrics of one node, as bound Prometheus children. No label ever grows with agents.

Made by `node`, written by routing and app, served on the admin port. Counting is all that happens here: nothing
decides by these numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fairlead.version import __version__

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds; from one hop on a quiet node to the longest wait for an absent agent."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry a node, so that two nodes in one process (tests) never mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.opened = Counter("fairlead_connections_opened_total", "Links that were welcomed", registry=r)
        self.closed = Counter(
            "fairlead_connections_closed_total", "Links that ended, by close code", ["code"], registry=r
        )
        self.rejected = Counter(
            "fairlead_handshake_rejected_total", "Upgrades refused over HTTP", ["reason"], registry=r
        )
        self.commands = Counter("fairlead_commands_total", "Commands that ended here, by state", ["state"], registry=r)
        self.accepted = Counter("fairlead_commands_accepted_total", "Commands that this node took in", registry=r)
        self.delivered = Counter("fairlead_commands_delivered_total", "Commands written to a link", registry=r)
        self.fenced = Counter(
            "fairlead_appends_fenced_total", "Results refused because another node owns the agent", registry=r
        )
        self.stored_bytes = Counter("fairlead_results_stored_bytes_total", "Payload bytes stored", registry=r)
        self.claim = Histogram("fairlead_claim_duration_seconds", "From hello to welcome", buckets=LATENCY, registry=r)
        self.rtt = Histogram(
            "fairlead_heartbeat_rtt_seconds", "Round trips that agents report", buckets=LATENCY, registry=r
        )
        self.redis = Histogram(
            "fairlead_redis_batch_duration_seconds", "One pipelined batch", buckets=LATENCY, registry=r
        )
        self.fencings = Counter(
            "fairlead_node_fenced_total", "Times this node lost its row and began a new life", registry=r
        )
        self.data_lost = Counter("fairlead_data_lost_total", "Times this node found Redis without its data", registry=r)
        self.reclaimed = Counter(
            "fairlead_agents_reclaimed_total", "Agents claimed again after doubt about their rows", registry=r
        )
        self._gauges = [Gauge("fairlead_build_info", "1, labelled with the version", ["version"], registry=r)]
        self._gauges[0].labels(__version__).set(1)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is scraped."""
        gauge = Gauge(name, text, registry=self.registry)
        gauge.set_function(read)
        self._gauges.append(gauge)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
