"""Which traces are kept, and the ids of their spans.

Asked by routing and app. What is sampled is decided from ids alone and before anything is made: a command that the
caller did not trace has its own id, a UUIDv7, for its trace, so every node comes to the same answer and a command that
is kept only at its end, because it was slow or failed, still gets one trace from all of them. Off, it costs one `if`.
Nothing of OpenTelemetry is imported here.
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
"""Bits of an id that sampling looks at: the last ones, which are random in a UUIDv7 and in a session's id."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where the spans of one command belong. `root` is the span of all of it, `parent` the caller's, 0 for none."""

    trace: int
    root: int
    parent: int
    sampled: bool


def parse_traceparent(traceparent: str) -> tuple[int, int, bool] | None:
    """Trace, span and the sampled flag of a W3C traceparent; None when it is malformed."""
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
    """Nanoseconds, as spans want them."""
    return time.time_ns()


def session_link(sid: str) -> SpanLink:
    """The span `session.open` of a session, made of its id alone, on any node. It is told, drawn or not, with the first
    command that is kept."""
    span = int(sid, 16) or 1
    return SpanLink(span << 64 | span, span)


class Tracing:
    """The switch, the sampling and the way out of one node."""

    def __init__(self, exporter: SpanExporter | None = None, ratio: float = 0.0, slow: float = 0.0) -> None:
        self.exporter = exporter
        self.on = exporter is not None
        self.slow = int(slow * 1e9)
        """Nanoseconds from which on a command is kept whatever was drawn."""
        self._threshold = int(ratio * (1 << _DRAW))

    def is_sampled(self, id_: str) -> bool:
        """Whether the command or session of that id is of the sampled ones."""
        return int(id_[-12:], 16) < self._threshold

    def traceparent_for(self, command: str, caller: str) -> str:
        """The traceparent for the command's record: the caller's, or one of our own for a command that is drawn."""
        if caller:
            return caller if parse_traceparent(caller) is not None else ""
        if not self.on or not self.is_sampled(command):
            return ""
        whole = int(command.replace("-", ""), 16)
        return format_traceparent(whole, whole & _LOW, True)

    def context(self, command: str, traceparent: str) -> TraceContext:
        """`traceparent` as it stands in the record."""
        whole = int(command.replace("-", ""), 16)
        root = whole & _LOW
        given = parse_traceparent(traceparent) if traceparent else None
        if given is None:
            return TraceContext(whole, root, 0, False)
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
