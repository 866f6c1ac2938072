"""Records what happens to links and commands: as metrics, spans and log lines.

The rest of `routing` calls it at each step, so that no other module knows how telemetry is kept. It decides nothing and
waits for nothing. With traces off, a command costs its timestamps and some counters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fairlead.hub.session import Session
from fairlead.routing.membership.membership import Membership
from fairlead.routing.membership.traffic_counter import TrafficCounter
from fairlead.telemetry import spans
from fairlead.telemetry.command_timing import CommandOrigin, CommandStats, CommandTiming
from fairlead.telemetry.decaying_histogram import quantile
from fairlead.telemetry.link_opening import CLAIMED, GREETED, OPENED, WELCOMED
from fairlead.telemetry.logs import LogAggregator, plain
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.span_exporter import Value
from fairlead.telemetry.tracing import TraceContext, Tracing, format_traceparent, span_id, wall_ns
from fairlead.wire.close_codes import find_close_code, may_reconnect, meaning_of, was_orderly

logger = logging.getLogger("fairlead.routing")

FAILED_STATES = frozenset({"failed", "timeout", "offline", "expired"})


class TelemetryRecorder:
    def __init__(self, tracing: Tracing, metrics: Metrics, membership: Membership) -> None:
        self.tracing = tracing
        self.message_counters = metrics.message_counters
        self.traffic = TrafficCounter()
        self.on_command_end: Callable[[str, str, str, str], None] | None = None
        """Told of each command that has ended here, its agent, its final state and the code of its error: the audit log
        records it."""
        self._metrics = metrics
        self._membership = membership
        self._log_aggregator = LogAggregator(logger)

    def aclose(self) -> None:
        self._log_aggregator.aclose()

    # -- links -------------------------------------------------------------------------------------

    def link_opened(self, session: Session) -> None:
        session.stamp_opening(OPENED)

    def hello_received(self, session: Session) -> None:
        session.stamp_opening(GREETED)

    def agent_claimed(self, session: Session) -> None:
        session.stamp_opening(CLAIMED)

    def agent_registered(self, seconds: float) -> None:
        """Record that an agent waited `seconds` from its hello to its welcome."""
        self._metrics.claim.observe(seconds)

    def rtt_reported(self, rtt_ms: float) -> None:
        self._metrics.rtt.observe(rtt_ms / 1000)

    def link_welcomed(self, session: Session, resumed: bool) -> None:
        """Record that an agent was welcomed. `resumed` says that the same process of the agent had a link before."""
        known = session.identity
        (self._metrics.resumed if resumed else self._metrics.opened).inc()
        self._log_aggregator.note(
            "agents linked", "resumed" if resumed else "new", logging.INFO, "agent %s linked, attempt %d of boot %s",
            session.agent, known.conn, plain(known.boot), agent=session.agent, session=known.sid,
        )  # fmt: skip
        tracing = self.tracing
        stamps = session.finish_opening(keep=tracing.on)
        if stamps is None:
            return
        phases = self._metrics.handshake
        for phase, begin, end in (
            ("upgrade", 0, OPENED), ("hello", OPENED, GREETED), ("claim", GREETED, CLAIMED),
            ("welcome", CLAIMED, WELCOMED),
        ):  # fmt: skip
            phases.of(phase).observe(max(0, stamps[end] - stamps[begin]) / 1e9)
        slow = stamps[WELCOMED] - stamps[0] >= tracing.slow
        if tracing.on and (slow or tracing.is_sampled(known.sid)):
            self._export_opening(session)

    def _export_opening(self, session: Session) -> None:
        """Export the spans of the link's opening: for a sampled or slow link at once, for others with the first command
        on it whose trace is kept."""
        if (stamps := session.take_opening()) is not None:
            encoding = session.context.codec.subprotocol
            facts: dict[str, Value] = {"fairlead.attempt": session.conn, "fairlead.encoding": encoding}
            self.tracing.put(spans.open_spans(stamps, session.agent, session.sid, facts))

    def link_closed(
        self, session: Session, now: float, code: int, reason: str, by_gateway: bool
    ) -> Mapping[str, CommandTiming]:
        """Record that a link is over. `now` is the event loop's time. Returns the commands that have not ended on
        it."""
        begin, tracing, known = wall_ns(), self.tracing, session.identity
        seconds = now - known.welcomed_at if known.welcomed_at else 0.0
        by = "gateway" if by_gateway else "agent"
        self._count_close(code, by)
        self.traffic.lost += not was_orderly(code)
        if known.welcomed_at:
            self._metrics.lived.observe(seconds)
        if session.agent:
            self._log_aggregator.note(
                "agents left", str(code), logging.INFO, "agent %s left: closed by the %s with %d, %s",
                session.agent, by, code, plain(reason) or meaning_of(code, "no reason"), agent=session.agent,
                session=known.sid,
            )  # fmt: skip
        interrupted = session.stop_timings()
        if not tracing.on or not known.welcomed_at:
            return interrupted
        for command, timing in interrupted.items():
            if timing.origin is not None:
                context = tracing.context(command, timing.origin.traceparent)
                if context.sampled:
                    tracing.put(
                        spans.delivery_spans(context, command, session.agent, known.sid, timing, begin, "link lost")
                    )
        if session.opening_exported:
            tally = session.tally or CommandStats()
            facts: dict[str, Value] = {
                "fairlead.close_code": code, "fairlead.closed_by": by, "fairlead.duration_s": round(seconds, 3),
                "fairlead.messages": session.received, "fairlead.commands": tally.commands,
                "fairlead.commands_failed": tally.failed,
            }  # fmt: skip
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                if (rtt := quantile(session.rtt_histogram, share)) is not None:
                    facts[f"fairlead.rtt_{name}_ms"] = round(rtt * 1000, 3)
            error = "" if was_orderly(code) else str(code)
            tracing.put([spans.close_span(begin, wall_ns(), session.agent, known.sid, facts, error)])
        return interrupted

    def _count_close(self, code: int, by: str) -> None:
        # An agent may send any code: all codes without a meaning share one label value.
        then = "reconnect" if may_reconnect(code) else "stay_away"
        self._metrics.closed.labels(str(code) if find_close_code(code) is not None else "other", then, by).inc()

    # -- commands ----------------------------------------------------------------------------------

    def command_sent(
        self, session: Session, command: str, timing: CommandTiming, origin: CommandOrigin, attempt: int
    ) -> str:
        """Record that a command is about to be written to the link. Returns the traceparent for the agent."""
        self._metrics.delivered.inc()
        timing.origin = origin
        timing.attempt = attempt
        timing.written = wall_ns()
        session.start_timing(command, timing)
        if not origin.traceparent or not self.tracing.on:
            return origin.traceparent
        context = self.tracing.context(command, origin.traceparent)
        if context.sampled:
            timing.span = span_id()
        return format_traceparent(context.trace, timing.span or context.root, context.sampled)

    def command_taken_over(self, session: Session, command: str) -> None:
        """Record that a command which the agent is already running continues over this link."""
        timing = CommandTiming(0, 0)
        timing.written, timing.resumed = wall_ns(), True
        session.start_timing(command, timing)

    def agent_ended_command(
        self, session: Session, command: str, timing: CommandTiming, state: str, kept: TraceContext | None
    ) -> None:
        """Record that an agent ended a command, which is stored. `kept` is what `command_completed` returned."""
        failed = state in FAILED_STATES
        stages = timing.stages()
        session.add_to_tally(stages, failed)
        self.traffic.add_command(failed, stages)
        for child, seconds in zip(self._metrics.stages, stages, strict=True):
            if seconds is not None:
                child.observe(seconds)
        if timing.origin is not None:
            total = (self._membership.now() - timing.origin.created) / 1000
            self._metrics.observe_command(timing.origin.method, total, f"{kept.trace:032x}" if kept is not None else "")
        if kept is not None:
            self._export_opening(session)
            error = timing.code or state if failed else ""
            self.tracing.put(
                spans.delivery_spans(kept, command, session.agent, session.sid, timing, timing.stored, error)
            )  # fmt: skip

    def deadline_passed(self) -> None:
        """Record that a command of one of this node's agents did not end before its deadline."""
        self.traffic.add_command(failed=True)

    def command_completed(
        self, command: str, agent: str, state: str, code: str, origin: CommandOrigin | None, sid: str
    ) -> TraceContext | None:
        """Record that a command has reached its final state on this node. Returns its trace context if it is kept."""
        if self.on_command_end is not None:
            self.on_command_end(command, agent, state, code)
        tracing, failed = self.tracing, state in FAILED_STATES
        context: TraceContext | None = None
        if tracing.on and origin is not None:
            end = wall_ns()
            worth = failed or (origin.began > 0 and end - origin.began >= tracing.slow)
            # The record of a command that is neither sampled nor traced by its caller has no traceparent: most have
            # none.
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
