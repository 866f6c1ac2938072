"""The OpenTelemetry span of a handler, in the trace in which the command was posted.

Called by `HandlerExecutor` around each handler. The SDK never imports OpenTelemetry: a program that traces has imported
it already, and any other program pays only for a lookup in a dict. The span is current while the handler runs, so that
the handler's own spans are its children, except for handlers that run in a process of their own.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

from fairlead.agent.commands.command import Command


def handler_span(command: Command, session: str) -> AbstractContextManager[object]:
    """A span for the block, marked as failed if the block raises; no span if this program does not trace."""
    if not command.traceparent or (api := sys.modules.get("opentelemetry.trace")) is None:
        return nullcontext()
    try:
        _, trace, span, flags = command.traceparent.split("-")[:4]
        caller = api.SpanContext(int(trace, 16), int(span, 16), True, api.TraceFlags(int(flags, 16)))
    except ValueError:  # from another gateway, or a later version
        return nullcontext()
    tracer = api.get_tracer("fairlead.agent")
    made: AbstractContextManager[object] = tracer.start_as_current_span(
        f"run {command.method}",
        api.set_span_in_context(api.NonRecordingSpan(caller)),
        api.SpanKind.SERVER,
        {
            "rpc.method": command.method, "fairlead.command": command.id, "fairlead.attempt": command.attempt,
            "session.id": session,
        },
    )  # fmt: skip
    return made
