"""The export of spans to the collector: a bounded queue, and a thread that sends its contents over OTLP/HTTP.

The node makes one if a collector is configured, and `tracing` feeds it. The event loop only puts plain rows into the
queue; the thread pays for everything of OpenTelemetry, including its import. A slow or dead collector loses spans,
which are counted, and never delays the event loop. OpenTelemetry's own batch processor does not fit: it accepts only
spans of its own tracer, and does not report how many it drops.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

QUEUE = 8_192
"""Spans that wait: some 8 MB, and the ten seconds for which a collector may be restarted at 100 traces a second."""
BATCH = 512
"""Spans of one request: some 200 KB."""
PAUSE = 2.0
"""Seconds between two requests that are not full: each costs some milliseconds, whatever is in it."""
TIMEOUT = 5.0
"""Seconds for one request, its repetitions included."""
FLUSH = 3.0
"""Seconds for what is left when the node stops."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A span of another trace."""

    trace: int
    span: int


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span. Times are ns of the wall clock; `parent` is 0 for none; `error` is "" when it went well."""

    trace: int
    id: int
    parent: int
    name: str
    kind: str
    start: int
    end: int
    facts: Mapping[str, Value]
    error: str = ""
    moments: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()


class SpanExporter:
    """`put` never blocks and never fails. The counters may be read at any time."""

    def __init__(self, endpoint: str, resource: Mapping[str, Value]) -> None:
        self._endpoint = endpoint
        self._resource = dict(resource)
        self._waiting: deque[Span] = deque()
        self._stopping = False
        self._due = threading.Event()
        """A batch is full, or the node stops."""
        self._otlp: OTLPSpanExporter | None = None
        self._failing = False
        self.exported = 0
        self.overflowed = 0
        """Dropped because the queue was full."""
        self.refused = 0
        """Dropped because the collector could not be reached, or did not take them."""
        self._thread = threading.Thread(target=self._run, name="fairlead-spans", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, spans: Sequence[Span]) -> None:
        if len(self._waiting) + len(spans) > QUEUE:
            self.overflowed += len(spans)
        else:
            self._waiting.extend(spans)
            if len(self._waiting) >= BATCH and not self._due.is_set():
                self._due.set()

    async def aclose(self) -> None:
        """Send what waits, for FLUSH seconds; then what is left is dropped."""
        self._stopping = True
        self._due.set()
        await asyncio.to_thread(self._thread.join, FLUSH)
        if self._otlp is not None:
            self._otlp.shutdown()  # type: ignore[no-untyped-call]  # ends the repetitions of a request under way
        self.overflowed += len(self._waiting)
        self._waiting.clear()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        convert = _converter(self._resource)
        self._otlp = otlp = _otlp(self._endpoint)
        last = False
        while not last:
            self._due.wait(PAUSE)
            self._due.clear()
            last = self._stopping
            deadline = time.monotonic() + FLUSH
            while self._waiting and not (last and time.monotonic() > deadline):
                self._send(otlp, convert, self._take())
                if self._failing and not self._stopping:
                    time.sleep(PAUSE)  # a collector that is away is not asked again at once, however much waits

    def _take(self) -> list[Span]:
        batch: list[Span] = []
        try:
            while len(batch) < BATCH:
                batch.append(self._waiting.popleft())
        except IndexError:  # that was all, or `aclose` has dropped the rest
            pass
        return batch

    def _send(self, otlp: OTLPSpanExporter, convert: Callable[[Span], ReadableSpan], batch: list[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            good = otlp.export([convert(span) for span in batch]) is SpanExportResult.SUCCESS
        except Exception:
            logger.exception("exporting spans failed")
            good = False
        if good:
            self.exported += len(batch)
        else:
            self.refused += len(batch)
        if good == self._failing:  # said once at each turn, not for each batch
            self._failing = not good
            if good:
                logger.info("the collector at %s takes spans again", self._endpoint)
            else:
                logger.warning("the collector at %s takes no spans: they are dropped and counted", self._endpoint)


def _otlp(endpoint: str) -> OTLPSpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # It logs each failure of each batch, with all its repetitions; `_send` says the same once.
    for name in ("opentelemetry.exporter.otlp", "opentelemetry.exporter.http", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint, timeout=TIMEOUT)


def _converter(resource: Mapping[str, Value]) -> Callable[[Span], ReadableSpan]:
    """Our rows as the SDK's spans, made without its tracer: that one draws its own ids and costs five times as much."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    source, scope = Resource.create(dict(resource)), InstrumentationScope("fairlead")
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def convert(span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            SpanContext(span.trace, span.id, False, sampled),
            SpanContext(span.trace, span.parent, True, sampled) if span.parent else None,
            source,
            dict(span.facts),
            [Event(moment.name, timestamp=moment.at) for moment in span.moments],
            [Link(SpanContext(to.trace, to.span, True, sampled)) for to in span.links],
            SpanKind[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start,
            end_time=max(span.start, span.end),
            instrumentation_scope=scope,
        )

    return convert
