"""A running command, and the reasons for which a command is stopped before its handler ends. Used by
`CommandRunner`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler
from fairlead.wire import messages
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import EndState, Error


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a command is stopped: the state and error of its end."""

    state: EndState
    error: Error | None
    event: str
    """What happened, for the log line about a handler that does not stop."""


CANCELLED = StopReason("cancelled", Error(code="cancelled", message="cancelled while it ran"), "it was cancelled")
TIMEOUT = StopReason("timeout", Error(code="deadline", message="the deadline passed while it ran"), "its deadline")
STOPPING = StopReason("cancelled", Error(code="cancelled", message="the agent was stopped"), "the agent was stopped")
LOST = StopReason("cancelled", None, "the gateway ended it")
CANCEL_REASONS = {messages.DEADLINE: TIMEOUT, messages.OVER: LOST}
"""The reasons that the `why` of a cancel stands for, unless the platform requested the cancel."""


@dataclass(slots=True)
class RunningCommand:
    command: Command
    stream: CommandStream
    handler: Handler
    task: asyncio.Task[None] | None = None
    """None until the journal has recorded the command."""
    timer: asyncio.TimerHandle | None = None
    """Fires at the deadline; once the command is being stopped, when its handler is no longer waited for."""
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """The outcome of a handler's run: the members of the `end` message."""

    state: EndState
    payload: bytes = b""
    error: Error | None = None
