"""Creates the spans of a node: the delivery of a command to its agent, its end, and the opening and closing of links.

The telemetry recorder of `routing` calls these functions when each of these has ended, with the timestamps that were
taken meanwhile. No span is created before it has ended, so none lasts as long as a link: the span of an opening is
created when the agent is welcomed, the span of a close after the close. Both carry `session.id`, as do the spans of all
commands that ran between them, which also have a span link to the opening.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.telemetry.command_timing import CommandOrigin, CommandTiming
from fairlead.telemetry.span_exporter import Span, SpanEvent, Value
from fairlead.telemetry.tracing import TraceContext, session_link, span_id


def command_span(
    context: TraceContext, id_: str, agent: str, sid: str, origin: CommandOrigin, state: str, code: str, end: int
) -> Span:
    """The span of a whole command. The node that ended it creates it; a terminal state is set only once, so there is
    only one such span."""
    facts: dict[str, Value] = {
        "fairlead.command": id_, "fairlead.agent": agent, "fairlead.state": state, "rpc.method": origin.method,
    }  # fmt: skip
    if code:
        facts["error.type"] = code
    if sid:
        facts["session.id"] = sid
    return Span(
        context.trace, context.root, context.parent, f"command {origin.method}", "SERVER", origin.began or end, end,
        facts, "" if state in ("ok", "cancelled") else code or state,
        links=[session_link(sid)] if sid else (),
    )  # fmt: skip


def delivery_spans(
    context: TraceContext, id_: str, agent: str, sid: str, timing: CommandTiming, end: int, error: str = ""
) -> list[Span]:
    """The spans of a command at the agent's node: doorbell, deliver, agent with its first byte, and end."""
    facts: dict[str, Value] = {"fairlead.command": id_, "fairlead.agent": agent, "session.id": sid}
    if timing.attempt:
        facts["fairlead.attempt"] = timing.attempt
    links = [session_link(sid)]
    spans: list[Span] = []

    def add(name: str, kind: str, start: int, stop: int, parent: int, own: int = 0, **more: object) -> None:
        spans.append(
            Span(context.trace, own or span_id(), parent, name, kind, start, stop, facts, links=links, **more)  # type: ignore[arg-type]  # `error` and `events` of Span
        )

    if timing.rung and timing.received:
        # The two timestamps are of two machines' clocks: if the doorbell arrived before it was sent, it took no time.
        add("doorbell", "CONSUMER", min(timing.rung, timing.received), timing.received, context.root)
    if timing.written:
        if timing.received:
            add("deliver", "INTERNAL", timing.received, timing.written, context.root)
        own = timing.span or span_id()
        events = [SpanEvent("ack", timing.acked)] if timing.acked else []
        add(
            "agent", "CLIENT", timing.written, timing.ended or end, context.root, own, error=error, events=events,
        )  # fmt: skip
        if timing.first:
            add("first byte", "INTERNAL", timing.written, timing.first, own)
    if timing.ended and timing.stored:
        add("end", "INTERNAL", timing.ended, timing.stored, context.root)
    return spans


def open_spans(stamps: Sequence[int], agent: str, sid: str, facts: dict[str, Value]) -> list[Span]:
    """The span `session.open` and the spans of its phases."""
    root = session_link(sid)
    begin, authed, accepted, hello, claimed, welcomed = stamps
    attributes: dict[str, Value] = {"session.id": sid, "fairlead.agent": agent}
    shake = span_id()
    parts = (
        ("handshake", shake, root.span, begin, accepted),
        ("auth", span_id(), shake, begin, authed),
        ("hello", span_id(), root.span, accepted, hello),
        ("claim", span_id(), root.span, hello, claimed),
        ("welcome", span_id(), root.span, claimed, welcomed),
    )
    session_span = Span(
        root.trace, root.span, 0, "session.open", "SERVER", begin, welcomed,
        {**attributes, "network.protocol.name": "websocket", **facts},
    )  # fmt: skip
    return [
        session_span,
        *(Span(root.trace, own, up, name, "INTERNAL", a, b, attributes) for name, own, up, a, b in parts),
    ]


def close_span(start: int, end: int, agent: str, sid: str, facts: dict[str, Value], error: str) -> Span:
    root = session_link(sid)
    attributes: dict[str, Value] = {"session.id": sid, "fairlead.agent": agent, **facts}
    return Span(root.trace, span_id(), root.span, "session.close", "INTERNAL", start, end, attributes, error)
