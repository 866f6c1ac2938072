"""The span of a handler, for programs that trace: it continues the trace in which the command was posted.

Called by `CommandRunner` around each handler. The SDK never imports OpenTelemetry: a program that traces has it
already, and one that does not pays a look into a dict. The span is current while the handler runs, so that what the
handler traces itself stands below it; only handlers in a process of their own are beyond its reach.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

from fairlead.agent.commands.command import Command


def handler_span(command: Command, session: str) -> AbstractContextManager[object]:
    """A span until the block is left, failed if an exception leaves it; nothing when this program does not trace."""
    if not command.traceparent or (api := sys.modules.get("opentelemetry.trace")) is None:
        return nullcontext()
    try:
        _, trace, span, flags = command.traceparent.split("-")[:4]
        caller = api.SpanContext(int(trace, 16), int(span, 16), True, api.TraceFlags(int(flags, 16)))
    except ValueError:  # a foreign gateway's, or a later version's
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
