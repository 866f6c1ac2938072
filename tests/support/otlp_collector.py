"""An OTLP/HTTP collector as small as can be: a real HTTP server that decodes what it is sent, for tests and the bench.

It keeps every span and log record it got. `tree` writes one trace as a person reads it, with times from its beginning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Encoded

TIMEOUT = 60.0


@dataclass
class Span:
    """One span as it came. Ids are hex, times ns."""

    trace: str
    id: str
    parent: str
    name: str
    kind: str
    start: int
    end: int
    attributes: dict[str, object]
    resource: dict[str, object]
    failed: bool
    message: str
    links: list[tuple[str, str]] = field(default_factory=list)
    """Trace and span."""
    events: list[str] = field(default_factory=list)


@dataclass
class LogRecord:
    """One log record as it came. `trace` is hex, `at` ns."""

    body: str
    event: str
    at: int
    trace: str
    severity: str
    attributes: dict[str, object]
    resource: dict[str, object]


class Collector:
    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.spans: list[Span] = []
        self.records: list[LogRecord] = []
        self.refusing = False
        """Whether it answers everything with 503."""
        self.requests = 0
        self.agents: set[str] = set()
        collector = self

        class CollectorHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                take = {"/v1/traces": collector.take, "/v1/logs": collector.take_logs}.get(self.path)
                good = take is not None and self.headers["content-type"] == "application/x-protobuf"
                if take is not None and good and not collector.refusing:
                    take(body)
                answer = ExportTraceServiceResponse().SerializeToString()  # that of logs is empty too
                self.send_response(503 if collector.refusing else 200 if good else 400)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(address, CollectorHandler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, body: bytes) -> None:
        self.requests += 1
        request = ExportTraceServiceRequest.FromString(body)
        for source in request.resource_spans:
            resource = _attributes(source.resource.attributes)
            for scope in source.scope_spans:
                self.spans += [_read(span, resource) for span in scope.spans]

    def take_logs(self, body: bytes) -> None:
        self.requests += 1
        for source in ExportLogsServiceRequest.FromString(body).resource_logs:
            resource = _attributes(source.resource.attributes)
            for scope in source.scope_logs:
                self.records += [
                    LogRecord(
                        one.body.string_value, one.event_name, one.time_unix_nano, one.trace_id.hex(),
                        one.severity_text, _attributes(one.attributes), resource,
                    )
                    for one in scope.log_records
                ]  # fmt: skip

    def trace(self, trace: str) -> list[Span]:
        return [span for span in tuple(self.spans) if span.trace == trace]

    def named(self, name: str, **attributes: object) -> list[Span]:
        """All spans of that name with those attributes (dots written as `__`)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return [s for s in tuple(self.spans) if s.name == name and wanted.items() <= s.attributes.items()]

    def wait(self, condition: Callable[[], bool], what: str = "") -> None:
        """Until it holds; the message shows what came instead."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {[span.name for span in self.spans]}"
            time.sleep(0.02)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def tree(spans: list[Span]) -> str:
    """One trace, indented by parent, with begin and duration of each span in ms and who made it."""
    known = {span.id for span in spans}
    begin = min(span.start for span in spans)
    lines: list[str] = []

    def write(parent: str, depth: int) -> None:
        for span in sorted(spans, key=lambda s: s.start):
            if (span.parent if span.parent in known else "") == parent:
                name = f"{'  ' * depth}{span.name}"
                times = f"{(span.start - begin) / 1e6:9.3f} +{(span.end - span.start) / 1e6:9.3f} ms"
                where = f"{span.resource.get('service.name')}/{span.resource.get('service.instance.id', '-')}"
                events = f"  [{', '.join(span.events)}]" if span.events else ""
                lines.append(f"{name:34} {times}  {where}{events}{'  ! ' + span.message if span.failed else ''}")
                write(span.id, depth + 1)

    write("", 0)
    return "\n".join(lines)


def _read(span: Encoded, resource: dict[str, object]) -> Span:
    return Span(
        span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.name,
        Encoded.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"), span.start_time_unix_nano,
        span.end_time_unix_nano, _attributes(span.attributes), resource, span.status.code == 2, span.status.message,
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        [event.name for event in span.events],
    )  # fmt: skip


def _attributes(attributes: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in attributes:  # type: ignore[attr-defined]  # a repeated field
        assert isinstance(item, KeyValue)
        kind = item.value.WhichOneof("value")
        found[item.key] = getattr(item.value, kind) if kind else None
    return found
