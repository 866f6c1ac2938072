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
"""The largest number of waiting spans: about 8 MB. It bridges ten seconds, enough to restart a collector, at 100 traces
per second."""
BATCH = 512
"""Spans in one request: about 200 KB."""
PAUSE = 2.0
"""Seconds between two requests that are not full: each request costs some milliseconds, whatever it contains."""
TIMEOUT = 5.0
"""Seconds for one request, including its retries."""
FLUSH = 3.0
"""Seconds to send the remaining spans when the node stops."""

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
    """A finished span. Times are ns of the wall clock; `parent` is 0 for a root span; `error` is "" on success."""

    trace: int
    id: int
    parent: int
    name: str
    kind: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    error: str = ""
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()


class SpanExporter:
    """The queue and its thread. `put` never blocks and never fails. The counters may be read at any time."""

    def __init__(self, endpoint: str, resource: Mapping[str, Value]) -> None:
        self._endpoint = endpoint
        self._resource = dict(resource)
        self._waiting: deque[Span] = deque()
        self._stopping = False
        self._export_now = threading.Event()
        """Set when a batch is full or the node stops."""
        self._otlp: OTLPSpanExporter | None = None
        self._failing = False
        self.exported = 0
        self.overflowed = 0
        """The number of spans dropped because the queue was full."""
        self.refused = 0
        """The number of spans dropped because the collector could not be reached or did not accept them."""
        self._thread = threading.Thread(target=self._run, name="fairlead-spans", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, spans: Sequence[Span]) -> None:
        if len(self._waiting) + len(spans) > QUEUE:
            self.overflowed += len(spans)
        else:
            self._waiting.extend(spans)
            if len(self._waiting) >= BATCH and not self._export_now.is_set():
                self._export_now.set()

    async def aclose(self) -> None:
        """Send the waiting spans for at most FLUSH seconds, then drop the rest."""
        self._stopping = True
        self._export_now.set()
        await asyncio.to_thread(self._thread.join, FLUSH)
        if self._otlp is not None:
            self._otlp.shutdown()  # type: ignore[no-untyped-call]  # ends the retries of a request under way
        self.overflowed += len(self._waiting)
        self._waiting.clear()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        convert = _converter(self._resource)
        self._otlp = otlp = _otlp(self._endpoint)
        last = False
        while not last:
            self._export_now.wait(PAUSE)
            self._export_now.clear()
            last = self._stopping
            deadline = time.monotonic() + FLUSH
            while self._waiting and not (last and time.monotonic() > deadline):
                self._send(otlp, convert, self._take())
                if self._failing and not self._stopping:
                    time.sleep(PAUSE)  # an unavailable collector gets a pause, however many spans wait

    def _take(self) -> list[Span]:
        batch: list[Span] = []
        try:
            while len(batch) < BATCH:
                batch.append(self._waiting.popleft())
        except IndexError:  # the queue is empty, or `aclose` has dropped the rest
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
        if good == self._failing:  # logged once at each change, not for each batch
            self._failing = not good
            if good:
                logger.info("the collector at %s accepts spans again", self._endpoint)
            else:
                logger.warning("the collector at %s accepts no spans: they are dropped and counted", self._endpoint)


def _otlp(endpoint: str) -> OTLPSpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # These libraries log each failure of each batch and each retry; `_send` logs the same once.
    for name in ("opentelemetry.exporter.otlp", "opentelemetry.exporter.http", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint, timeout=TIMEOUT)


def _converter(resource: Mapping[str, Value]) -> Callable[[Span], ReadableSpan]:
    """Return a function that converts a `Span` into a span of the SDK.

    It does not use the SDK's tracer, which generates its own ids and costs five times as much.
    """
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
            dict(span.attributes),
            [Event(event.name, timestamp=event.at) for event in span.events],
            [Link(SpanContext(to.trace, to.span, True, sampled)) for to in span.links],
            SpanKind[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start,
            end_time=max(span.start, span.end),
            instrumentation_scope=scope,
        )

    return convert
