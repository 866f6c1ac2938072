"""What is told of links and commands: their latencies, their metrics, their spans and their log lines.

Called by the rest of routing at the turning points, so that no other part knows how any of it is kept. It decides
nothing and waits for nothing: with traces off, a command costs its stamps and some counters.
"""

from __future__ import annotations

import logging

from fairlead.hub.session import Session
from fairlead.routing.membership.membership import Membership
from fairlead.telemetry import spans
from fairlead.telemetry.command_timing import CommandOrigin, CommandStats, CommandTiming
from fairlead.telemetry.decaying_histogram import quantile
from fairlead.telemetry.logs import LogAggregator, plain
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.span_exporter import Value
from fairlead.telemetry.tracing import TraceContext, Tracing, format_traceparent, span_id, wall_ns
from fairlead.wire.close_codes import find_close_code, may_reconnect, meaning_of, was_orderly

logger = logging.getLogger("fairlead.routing")

FAILED = frozenset({"failed", "timeout", "offline", "expired"})
TOLD = b""
"""An opening whose spans are on their way."""


class TelemetryRecorder:
    def __init__(self, tracing: Tracing, metrics: Metrics, membership: Membership) -> None:
        self.tracing = tracing
        self._metrics = metrics
        self._membership = membership
        self._log_aggregator = LogAggregator(logger)

    def aclose(self) -> None:
        self._log_aggregator.aclose()

    # -- links -------------------------------------------------------------------------------------

    def welcomed(self, session: Session, resumed: bool) -> None:
        """The link is the agent's from now on."""
        (self._metrics.resumed if resumed else self._metrics.opened).inc()
        self._log_aggregator.note(
            "agents linked", "resumed" if resumed else "new", logging.INFO, "agent %s linked, attempt %d of boot %s",
            session.agent, session.conn, plain(session.boot), agent=session.agent, session=session.sid,
        )  # fmt: skip
        stamps, session.opening = session.opening, None
        if not isinstance(stamps, list):
            return
        stamps[5] = wall_ns()
        phases = self._metrics.handshake
        for phase, begin, end in (("upgrade", 0, 2), ("hello", 2, 3), ("claim", 3, 4), ("welcome", 4, 5)):
            phases.of(phase).observe(max(0, stamps[end] - stamps[begin]) / 1e9)
        tracing = self.tracing
        if not tracing.on:
            return
        session.opening = spans.pack_opening(stamps)
        if tracing.is_sampled(session.sid) or stamps[5] - stamps[0] >= tracing.slow:
            self._show_opening(session)

    def _show_opening(self, session: Session) -> None:
        """A link's opening is told when it is drawn, or with the first command on it that is kept."""
        if isinstance(session.opening, bytes) and session.opening:
            stamps, session.opening = spans.unpack_opening(session.opening), TOLD
            facts: dict[str, Value] = {"fairlead.attempt": session.conn, "fairlead.encoding": session.codec.subprotocol}
            self.tracing.put(spans.open_spans(stamps, session.agent, session.sid, facts))

    def left(self, session: Session, lived: float, code: int, reason: str) -> None:
        """A link that had been claimed, or was about to be, is over."""
        begin, tracing = wall_ns(), self.tracing
        by = "gateway" if session.ours else "agent"
        self._count_close(code, by)
        if session.since:
            self._metrics.lived.observe(lived)
        if session.agent:
            self._log_aggregator.note(
                "agents left", str(code), logging.INFO, "agent %s left: closed by the %s with %d, %s",
                session.agent, by, code, plain(reason) or meaning_of(code, "no reason"), agent=session.agent,
                session=session.sid,
            )  # fmt: skip
        lost, session.timings = session.timings, None
        if not tracing.on or not session.since:
            return
        for command, timing in (lost or {}).items():
            if timing.origin is not None:
                context = tracing.context(command, timing.origin.traceparent)
                if context.sampled:
                    tracing.put(
                        spans.delivery_spans(context, command, session.agent, session.sid, timing, begin, "link lost")
                    )
        if session.opening == TOLD:
            tally = session.tally or CommandStats()
            facts: dict[str, Value] = {
                "fairlead.close_code": code, "fairlead.closed_by": by, "fairlead.duration_s": round(lived, 3),
                "fairlead.messages": session.link.received, "fairlead.commands": tally.commands,
                "fairlead.commands_failed": tally.failed,
            }  # fmt: skip
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                if (trip := quantile(session.trips, share)) is not None:
                    facts[f"fairlead.rtt_{name}_ms"] = round(trip * 1000, 3)
            error = "" if was_orderly(code) else str(code)
            tracing.put([spans.close_span(begin, wall_ns(), session.agent, session.sid, facts, error)])

    def _count_close(self, code: int, by: str) -> None:
        # An agent may send any code: those that mean nothing are counted as one.
        self._metrics.closed.labels("other" if find_close_code(code) is None else str(code), _then(code), by).inc()

    # -- commands ----------------------------------------------------------------------------------

    def send(self, session: Session, command: str, timing: CommandTiming, origin: CommandOrigin, attempt: int) -> str:
        """The command is being written to the link; the traceparent that the agent is told."""
        timing.origin = origin
        timing.attempt = attempt
        timing.written = wall_ns()
        if session.timings is None:
            session.timings = {}
        session.timings[command] = timing
        if not origin.traceparent or not self.tracing.on:
            return origin.traceparent
        context = self.tracing.context(command, origin.traceparent)
        if context.sampled:
            timing.span = span_id()
        return format_traceparent(context.trace, timing.span or context.root, context.sampled)

    def taken_up(self, session: Session, command: str) -> None:
        """The command runs on the agent already, and goes on over this link."""
        timing = CommandTiming(0, 0)
        timing.written, timing.resumed = wall_ns(), True
        if session.timings is None:
            session.timings = {}
        session.timings[command] = timing

    def ended(
        self, session: Session, command: str, timing: CommandTiming, state: str, kept: TraceContext | None
    ) -> None:
        """The agent ended a command and that is stored; `kept` is what `over` said."""
        failed = state in FAILED
        stages = timing.stages()
        if session.tally is None:
            session.tally = CommandStats()
        session.tally.add(stages, failed)
        for child, seconds in zip(self._metrics.stages, stages, strict=True):
            if seconds is not None:
                child.observe(seconds)
        if timing.origin is not None:
            total = (self._membership.now() - timing.origin.created) / 1000
            self._metrics.observe_command(timing.origin.method, total, f"{kept.trace:032x}" if kept is not None else "")
        if kept is not None:
            self._show_opening(session)
            self.tracing.put(
                spans.delivery_spans(
                    kept, command, session.agent, session.sid, timing, timing.stored,
                    timing.code or state if failed else "",
                )
            )  # fmt: skip

    def over(
        self, command: str, agent: str, state: str, code: str, origin: CommandOrigin | None, sid: str
    ) -> TraceContext | None:
        """A command came into its terminal state on this node just now; where its spans belong, if it is kept."""
        tracing, failed = self.tracing, state in FAILED
        context: TraceContext | None = None
        if tracing.on and origin is not None:
            end = wall_ns()
            worth = failed or (origin.began > 0 and end - origin.began >= tracing.slow)
            # Most are neither drawn nor traced by their caller: of these the record says nothing.
            if worth or origin.traceparent:
                found = tracing.context(command, origin.traceparent)
                if worth or found.sampled:
                    context = found
                    tracing.put([spans.command_span(found, command, agent, sid, origin, state, code, end)])
        if failed:
            trace = f"{context.trace:032x}" if context is not None else ""
            self._log_aggregator.note(
                "commands failed", plain(code) or state, logging.INFO, "command %s on %s ended as %s%s",
                command, agent, state, code and f": {plain(code)}", agent=agent, command=command, session=sid,
                trace=trace,
            )  # fmt: skip
        return context


def _then(code: int) -> str:
    return "reconnect" if may_reconnect(code) else "stay_away"
