"""Decides which traces are kept, and the ids of their spans.

`routing` and `app` call it. It decides about sampling from ids alone, before any span is created. If the caller did not
trace a command, the id of the command, a UUIDv7, is also the id of its trace. So every node decides alike, and a
command whose trace is kept only at its end, because it was slow or failed, still gets one trace from all nodes. When
tracing is off, it costs one `if`. This module imports nothing from OpenTelemetry.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.telemetry.span_exporter import Span, SpanExporter, SpanLink

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)
_LOW = (1 << 64) - 1
_DRAW = 48
"""The number of bits of an id that sampling uses: the last ones, which are random in a UUIDv7 and in a session id."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids for the spans of one command. `root` is the span of the whole command, `parent` the caller's (or 0)."""

    trace: int
    root: int
    parent: int
    sampled: bool


def parse_traceparent(traceparent: str) -> tuple[int, int, bool] | None:
    """Return the trace id, span id and sampled flag of a W3C traceparent, or None if it is malformed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found[1] == "ff" or (found[1] == "00" and len(traceparent) != 55):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    return (trace, span, bool(int(found[4], 16) & 1)) if trace and span else None


def format_traceparent(trace: int, span: int, sampled: bool) -> str:
    return f"00-{trace:032x}-{span:016x}-{int(sampled):02x}"


def span_id() -> int:
    return random.getrandbits(64) or 1


def wall_ns() -> int:
    """The wall clock in nanoseconds, as spans require."""
    return time.time_ns()


def session_link(sid: str) -> SpanLink:
    """A link to the span `session.open` of a session. Any node can derive it from the session id alone.

    The span is exported with the first command of the session whose trace is kept, whether the session is sampled or
    not.
    """
    span = int(sid, 16) or 1
    return SpanLink(span << 64 | span, span)


class Tracing:
    """The tracing of one node: whether it is on, which traces are sampled, and the exporter."""

    def __init__(self, exporter: SpanExporter | None = None, ratio: float = 0.0, slow: float = 0.0) -> None:
        self.exporter = exporter
        self.on = exporter is not None
        self.slow = int(slow * 1e9)
        """A command that takes at least this many nanoseconds is kept even if it is not sampled."""
        self._threshold = int(ratio * (1 << _DRAW))

    def is_sampled(self, id_: str) -> bool:
        """Whether the command or session with this id is sampled."""
        return int(id_[-12:], 16) < self._threshold

    def traceparent_for(self, command: str, caller: str) -> str:
        """The traceparent for the record of a command: the caller's, or our own for a sampled command, otherwise ""."""
        if caller:
            return caller if parse_traceparent(caller) is not None else ""
        if not self.on or not self.is_sampled(command):
            return ""
        trace_id = int(command.replace("-", ""), 16)
        return format_traceparent(trace_id, trace_id & _LOW, True)

    def context(self, command: str, traceparent: str) -> TraceContext:
        """The trace context of a command; `traceparent` is that of its record."""
        trace_id = int(command.replace("-", ""), 16)
        root = trace_id & _LOW
        given = parse_traceparent(traceparent) if traceparent else None
        if given is None:
            return TraceContext(trace_id, root, 0, False)
        trace, parent, sampled = given
        return TraceContext(trace, root, 0 if parent == root else parent, sampled)

    @property
    def exported(self) -> int:
        return self.exporter.exported if self.exporter is not None else 0

    @property
    def dropped(self) -> int:
        return self.exporter.overflowed + self.exporter.refused if self.exporter is not None else 0

    def put(self, spans: Sequence[Span]) -> None:
        if self.exporter is not None:
            self.exporter.put(spans)
