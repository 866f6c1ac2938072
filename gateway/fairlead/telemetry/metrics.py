"""The metrics of one node, as bound Prometheus children. No label grows with the number of agents.

`node` creates them, routing and app update them, and the admin port serves them. No decision depends on them.
docs/telemetry.md lists all metrics, and a test compares that list with this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics

from fairlead.telemetry.command_timing import STAGES
from fairlead.telemetry.histogram import Histogram, Series
from fairlead.telemetry.message_counters import MessageCounters
from fairlead.version import __version__

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds; from one hop on a quiet node to the longest wait for an absent agent."""
LIVES = (1, 10, 60, 300, 1800, 3600, 6 * 3600, 12 * 3600, 86400)
"""Seconds; the lifetimes of links, up to a day."""
PAUSES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""Seconds for which the event loop was blocked."""
METHODS = 20
"""The number of methods with their own series: the first ones that occur. Platforms name methods, and may name many."""
OTHER = "other"

# Otherwise each counter and histogram would have a second series with its creation time, which is about the same as the
# start time of the process.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


def wants_openmetrics(accept: str) -> bool:
    """Whether a scraper that sends this Accept understands OpenMetrics, and with it exemplars."""
    return "application/openmetrics-text" in accept


class PlainCounter:
    """A counter that each command changes, always in the same event loop. One of prometheus_client takes a lock, and
    ten times as long."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, by: int = 1) -> None:
        self.value += by


class Metrics:
    """The metrics of one node. Each node has its own registry, so that two nodes in one process (tests) never mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_link_metrics(self.registry)
        self._add_command_metrics(self.registry)
        self._add_node_metrics(self.registry)

    def _add_link_metrics(self, r: CollectorRegistry) -> None:
        opened = Counter(
            "fairlead_links_opened_total", "Links that were welcomed: of a new start or resumed", ["result"],
            registry=r,
        )  # fmt: skip
        self.opened = opened.labels("new")
        self.resumed = opened.labels("resumed")
        self.closed = Counter(
            "fairlead_links_closed_total", "Links that ended, by close code, what the agent does next and who closed",
            ["code", "then", "by"], registry=r,
        )  # fmt: skip
        self.lived = Histogram("fairlead_link_duration_seconds", "Lifetime of links, from welcome on", LIVES, r)
        self.moves = Counter(
            "fairlead_moves_total",
            "Agents that were told to move to another node, by reason: granted by the budget or overdrawn",
            ["why", "budget"], registry=r,
        )  # fmt: skip
        for budget in ("granted", "overdrawn"):
            self.moves.labels("shutdown", budget)
        self.rejected = Counter(
            "fairlead_handshakes_rejected_total", "Upgrades refused over HTTP", ["reason"], registry=r
        )
        self.credentials_refused = Counter(
            "fairlead_credentials_refused_total", "Requests without a valid token, by port", ["port"], registry=r
        )
        for port in ("link", "api"):
            self.credentials_refused.labels(port)
        self.handshake = Histogram(
            "fairlead_handshake_duration_seconds", "Phases of a link's opening", LATENCY, r, "phase"
        )
        self.claim = Histogram("fairlead_claim_duration_seconds", "From hello to welcome", LATENCY, r)
        self.rtt = Histogram("fairlead_heartbeat_rtt_seconds", "Heartbeat round trips reported by agents", LATENCY, r)

    def _add_command_metrics(self, r: CollectorRegistry) -> None:
        self.commands: defaultdict[str, PlainCounter] = defaultdict(PlainCounter)
        """By the state in which they ended."""
        self.add_labelled_counter(
            "fairlead_commands_total", "Commands that ended here, by state", ("state",),
            lambda: {(state,): ended.value for state, ended in self.commands.items()},
        )  # fmt: skip
        self.accepted = self._count("fairlead_commands_accepted_total", "Commands that this node accepted")
        self.delivered = self._count("fairlead_commands_delivered_total", "Commands written to a link")
        self._duration = Histogram(
            "fairlead_command_duration_seconds",
            "Duration of commands that an agent ended, from the post on",
            LATENCY,
            r,
            "method",
        )
        self._methods: dict[str, Series] = {}
        stage = Histogram(
            "fairlead_command_stage_duration_seconds", "Stages of a command at its agent's node", LATENCY, r, "stage"
        )
        self.stages = tuple(map(stage.of, STAGES))
        self.events_dropped = Counter(
            "fairlead_events_dropped_total",
            "Events removed because their agent had more than one agent may have",
            registry=r,
        )
        self.redelivered = Counter(
            "fairlead_event_redeliveries_total",
            "Events that a group of readers got again because nobody had acknowledged them in time",
            registry=r,
        )
        self.fenced = Counter(
            "fairlead_appends_fenced_total", "Results refused because another node owns the agent", registry=r
        )
        self.stored_bytes = self._count("fairlead_results_stored_bytes_total", "Payload bytes stored")

    def _add_node_metrics(self, r: CollectorRegistry) -> None:
        self.redis = Histogram("fairlead_redis_batch_duration_seconds", "Duration of one pipelined batch", LATENCY, r)
        self.lag = Histogram("fairlead_event_loop_lag_seconds", "Delay of a timer on the event loop", PAUSES, r)
        self.pauses = Histogram("fairlead_gc_pause_seconds", "Garbage collections", PAUSES, r, "generation")
        self.fencings = Counter(
            "fairlead_node_fenced_total",
            "How often this node lost its row in Redis and joined the fleet again",
            registry=r,
        )
        self.data_lost = Counter(
            "fairlead_data_lost_total", "How often this node found Redis without its data", registry=r
        )
        self.failovers = Counter(
            "fairlead_redis_failovers_total",
            "How often this node found another Redis server in place of the one before, or the same one restarted",
            registry=r,
        )
        self.reclaimed = Counter(
            "fairlead_agents_reclaimed_total", "Agents claimed again because their rows were in doubt", registry=r
        )
        self.labels_lost = Counter(
            "fairlead_labels_lost_total", "Agents whose row and labels were lost with the data in Redis", registry=r
        )
        self.forgotten = Counter(
            "fairlead_agents_forgotten_total", "Agents removed, by request or after forget_after", registry=r
        )
        self.rows_skipped = Counter(
            "fairlead_index_rows_skipped_total", "Rows of agents that the index sweeper could not read", registry=r
        )
        self.message_counters = MessageCounters()
        r.register(self.message_counters)
        self._gauges = [Gauge("fairlead_build_info", "1, labelled with the version", ["version"], registry=r)]
        self._gauges[0].labels(__version__).set(1)

    def observe_command(self, method: str, seconds: float, trace: str) -> None:
        """Observe a command that an agent ended. `trace` is the id of its trace if that is kept, else ""."""
        series = self._methods.get(method)
        if series is None:
            if len(self._methods) < METHODS:
                series = self._methods[method] = self._duration.of(method)
            else:
                series = self._duration.of(OTHER)
        series.observe(seconds, trace)

    def _count(self, name: str, text: str) -> PlainCounter:
        count = PlainCounter()
        self.add_counter(name, text, lambda: count.value)
        return count

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read when it is scraped."""
        gauge = Gauge(name, text, registry=self.registry)
        gauge.set_function(read)
        self._gauges.append(gauge)

    def add_labelled_gauge(self, name: str, text: str, label: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Add a gauge with one series for each value of `label`, whose values are read when it is scraped."""
        gauge = Gauge(name, text, [label], registry=self.registry)
        for value, read in reads.items():
            gauge.labels(value).set_function(read)
        self._gauges.append(gauge)

    def add_varying_gauge(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge whose series, by the value of `label`, are read when it is scraped. They must be few."""
        self.registry.register(
            _ReadEach(GaugeMetricFamily, name, text, (label,), lambda: {(one,): n for one, n in read().items()})
        )

    def add_counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a counter whose value is read when it is scraped."""
        self.registry.register(_Read(name, text, read))

    def add_labelled_counter(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], Mapping[tuple[str, ...], float]]
    ) -> None:
        """Add a counter with one series for each tuple of values of `labels`, which are read when it is scraped. They
        must be bounded."""
        self.registry.register(_ReadEach(CounterMetricFamily, name, text, labels, read))

    def exposition(self, with_exemplars: bool = False) -> bytes:
        """Return all metrics as text: in OpenMetrics format if `with_exemplars`, else in Prometheus format."""
        made = openmetrics.generate_latest if with_exemplars else generate_latest
        return bytes(made(self.registry))


class _Read:
    """A collector of one counter whose value another object keeps."""

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._read = read

    def collect(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(self._name, self._text, value=self._read())]


class _ReadEach:
    """A collector of one counter or gauge with labels whose values another object keeps."""

    def __init__(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        labels: Sequence[str],
        read: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._family = family
        self._about = name, text
        self._labels = labels
        self._read = read

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        found = self._family(*self._about, labels=self._labels)
        for values, number in self._read().items():
            found.add_metric(values, number)
        return [found]
