"""The trace of one request that posts a command, on the node that received it: from the request to the doorbell, and to
the end of the streamed answer.

The API makes a `RequestTrace` when traces are on, dispatch fills it in, and whoever answers the caller ends it. The
spans of a sampled command are exported at once. Those of any other command are exported only if the answer shows that
the command was slow or failed, so a request whose trace is not kept costs a few timestamps.
"""

from __future__ import annotations

from fairlead.telemetry.span_exporter import Span, SpanEvent, SpanLink, Value
from fairlead.telemetry.tracing import TraceContext, Tracing, session_link, span_id, wall_ns


class RequestTrace:
    """The timestamps and ids of one request that posts a command."""

    __slots__ = (
        "_accept", "_tracing", "accepted", "agent", "began", "command", "first", "method", "placed", "rung", "sid",
        "traceparent",
    )  # fmt: skip

    def __init__(self, tracing: Tracing) -> None:
        self.began = wall_ns()
        self.command = self.agent = self.method = self.sid = ""
        self.traceparent = ""
        """The traceparent for the record of the command, or "" if the command is not traced so far."""
        self.placed = 0
        self.rung = 0
        self.accepted = 0
        self.first = 0
        self._tracing = tracing
        self._accept = 0

    def begin(self, command: str, agent: str, method: str, caller: str) -> None:
        """Record that dispatch begins and the command has its id. `caller` is the traceparent of the request."""
        self.command, self.agent, self.method = command, agent, method
        self.traceparent = self._tracing.traceparent_for(command, caller)
        self.placed = wall_ns()

    def accept(self) -> None:
        """Record that the command is stored in Redis and the caller is told so."""
        self.accepted = wall_ns()
        if self.traceparent and (context := self._context()).sampled:
            self._tracing.put(self._acceptance(context))

    def refuse(self, code: str, recorded: bool) -> None:
        """Export the whole trace of a command that was refused. Without a record, it is exported only if sampled."""
        context = self._context()
        if not (context.sampled or recorded):
            return
        self.accepted = wall_ns()
        root = Span(
            context.trace, context.root, context.parent, f"command {self.method}", "SERVER", self.began,
            self.accepted, {**self._facts(), "error.type": code}, code,
        )  # fmt: skip
        self._tracing.put([root, *self._acceptance(context, code)])

    def first_results(self) -> None:
        """Record that the first results are sent to the caller."""
        if not self.first:
            self.first = wall_ns()

    def end(self, failed: bool) -> None:
        """Record that the end of the stream is sent to the caller."""
        end = wall_ns()
        worth = failed or end - self.began >= self._tracing.slow
        if not (worth or self.traceparent) or not self.command:
            return
        context = self._context()
        if not (worth or context.sampled):
            return
        spans = [] if context.sampled else self._acceptance(context)
        events = [SpanEvent("first byte", self.first)] if self.first else []
        spans.append(
            Span(
                context.trace, span_id(), context.root, "api.follow", "INTERNAL", self.accepted, end, self._facts(),
                events=events, links=self._links(),
            )
        )  # fmt: skip
        self._tracing.put(spans)

    def _context(self) -> TraceContext:
        return self._tracing.context(self.command, self.traceparent)

    def _acceptance(self, context: TraceContext, code: str = "") -> list[Span]:
        self._accept = span_id()
        facts = {**self._facts(), "http.request.method": "POST", "http.route": "/v1/commands"}
        links = self._links()
        spans = [
            Span(
                context.trace, self._accept, context.root, "api.accept", "INTERNAL", self.began, self.accepted,
                facts, code, links=links,
            )
        ]  # fmt: skip
        if self.rung:
            attributes = {**self._facts(), "messaging.system": "redis", "messaging.operation.type": "send"}
            spans.append(
                Span(
                    context.trace, span_id(), self._accept, "dispatch", "PRODUCER", self.placed, self.rung, attributes,
                    links=links,
                )
            )  # fmt: skip
        return spans

    def _links(self) -> list[SpanLink]:
        return [session_link(self.sid)] if self.sid else []

    def _facts(self) -> dict[str, Value]:
        facts: dict[str, Value] = {"fairlead.command": self.command, "fairlead.agent": self.agent}
        if self.sid:
            facts["session.id"] = self.sid
        return facts
