"""The commands of this agent: each accepted once, run by its handler, ended once.

Called by the session with what comes from the gateway. A command is acknowledged before its handler starts. It ends
by itself, by a cancel or at its deadline; the latter two do not wait long for a handler that will not stop: the
command is ended and whatever the handler still says is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fairlead.agent.command import Command
from fairlead.agent.errors import CommandError
from fairlead.agent.handler import Handler, Place
from fairlead.agent.outlet import Outlet
from fairlead.agent.output import item, result
from fairlead.agent.process import Processes
from fairlead.agent.threads import Threads
from fairlead.wire.agent_link import CommandStream
from fairlead.wire.messages import Ack, Cancel, Cmd, EndState, Error

logger = logging.getLogger("fairlead.agent")

OPEN = 1_000
"""Commands at once, with those whose results are not stored yet: as many as a gateway lets wait for an agent, so that
none is refused that had been queued, and fewer than the 1,024 that hello can name."""
STOP_TIMEOUT = 8.0
"""Seconds for a handler to stop: the protocol gives 10, an exec needs 3 to be killed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a command is ended from outside."""

    state: EndState
    error: Error | None
    late: str
    """For the log, when the handler does not stop."""


CANCELLED = Stop("cancelled", Error(code="cancelled", message="cancelled while it ran"), "cancelled")
TIMEOUT = Stop("timeout", Error(code="deadline", message="the deadline passed while it ran"), "its deadline")
STOPPING = Stop("cancelled", Error(code="cancelled", message="the agent was stopped"), "the agent's end")
LOST = Stop("cancelled", None, "the gateway had ended it")


@dataclass(slots=True)
class Running:
    command: Command
    stream: CommandStream
    handler: Handler
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    stop: Stop | None = None


class Commands:
    def __init__(self, handlers: Mapping[str, Handler], outlet: Outlet) -> None:
        self._handlers = handlers
        self._outlet = outlet
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Also of commands that were ended while their handler would not stop."""
        self._processes = Processes()
        self._places: dict[Place, Threads | Processes] = {"thread": Threads(), "process": self._processes}
        self._loop = asyncio.get_running_loop()

    # -- what the session tells --------------------------------------------------------------------

    def commanded(self, cmd: Cmd) -> None:
        """Accept, refuse, or tell that it is known."""
        if self._outlet.outbox.known(cmd.id):
            self._outlet.tell(Ack(id=cmd.id, state="duplicate"))
            return
        try:
            handler = self._handlers.get(cmd.method)
            if handler is None:
                raise CommandError("unknown_method", f"this agent has no method {cmd.method!r}")
            arguments = handler.arguments(cmd.payload)
            self._book(handler)
        except CommandError as e:
            self._outlet.tell(Ack(id=cmd.id, state="refused", error=e.to_wire()))
            return
        self._outlet.tell(Ack(id=cmd.id))
        stream = self._outlet.outbox.opened(cmd, self._outlet.limits.window)
        command = Command(cmd, stream, self._outlet)
        running = self._running[cmd.id] = Running(command, stream, handler)
        running.task = self._loop.create_task(self._run(running, arguments))
        running.timer = self._loop.call_later(cmd.deadline / 1000, self._stop, running, TIMEOUT)
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def cancelled(self, cancel: Cancel) -> None:
        if (running := self._running.get(cancel.id)) is not None:
            self._stop(running, CANCELLED)

    def moved(self, commands: Iterable[str]) -> None:
        for command in commands:
            if (running := self._running.get(command)) is not None:
                running.command.moved()

    def lost(self, commands: Iterable[str]) -> None:
        """The gateway has ended these, or lost their results: nobody waits for them."""
        for command in commands:
            logger.warning("the gateway does not go on with command %s: it is stopped", command)
            if (running := self._running.get(command)) is not None:
                running.command.over()
                self._stop(running, LOST)

    # -- the agent's end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """End all that runs, and wait until it has ended or been given up."""
        for running in tuple(self._running.values()):
            self._stop(running, STOPPING)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT + 1)
        await self._processes.close()

    # -- running -----------------------------------------------------------------------------------

    def _book(self, handler: Handler) -> None:
        # Both count: a stream may wait for its receipt after its handler, a handler may outstay its stream.
        if max(len(self._outlet.outbox.streams), len(self._tasks)) >= OPEN:
            raise CommandError("busy", f"{OPEN} commands are open, the limit: try again later", temporary=True)
        if handler.place != "loop" and not self._places[handler.place].slots.book():
            raise CommandError("busy", f"too many commands wait for a {handler.place}: try again later", temporary=True)

    def _stop(self, running: Running, why: Stop) -> None:
        if running.stop is not None:
            return
        running.stop = why
        assert running.timer is not None
        assert running.task is not None
        running.timer.cancel()
        running.timer = self._loop.call_later(STOP_TIMEOUT, self._give_up, running)
        # Not before the task's first step: one that is cancelled before it began could not clean up.
        self._loop.call_soon(running.task.cancel)

    def _give_up(self, running: Running) -> None:
        assert running.stop is not None
        logger.warning(
            "the handler of %s did not stop within %g s of %s: command %s is ended without it",
            running.command.method, STOP_TIMEOUT, running.stop.late, running.command.id,
        )  # fmt: skip
        self._end(running, running.stop.state, error=running.stop.error)

    async def _run(self, running: Running, arguments: dict[str, Any]) -> None:
        """From accepted to the end, whatever the handler does."""
        state: EndState = "ok"
        payload, error = b"", None
        try:
            payload = await self._call(running.handler, running.command, arguments)
            if len(payload) > self._outlet.payload_limit:
                raise CommandError(
                    "handler_failed",
                    f"result of {len(payload)} bytes exceeds max {self._outlet.payload_limit}: yield it in pieces",
                )
        except asyncio.CancelledError:
            state, error = "error", Error(code="handler_failed", message="the handler cancelled itself")
        except CommandError as e:
            state, error = "error", e.to_wire()
        except (Exception, SystemExit) as e:
            logger.exception("the handler of %s failed", running.command.method)
            failure = CommandError("handler_failed", f"{type(e).__name__}: {e}")
            state, error = "error", failure.to_wire()
        if running.stop is not None:
            state, payload, error = running.stop.state, b"", running.stop.error
        self._end(running, state, payload if error is None else b"", error)

    async def _call(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """Where it belongs; the end's payload."""
        if handler.place != "loop":
            return await self._places[handler.place].run(handler, command, arguments)
        given = (command,) if handler.takes_command else ()
        if not handler.streams:
            return result(await handler.function(*given, **arguments))
        async with aclosing(handler.function(*given, **arguments)) as values:
            async for value in values:
                await command.write(*item(value))
        return b""

    def _end(self, running: Running, state: EndState, payload: bytes = b"", error: Error | None = None) -> None:
        """Once: the first to come wins."""
        command = running.command
        if self._running.get(command.id) is not running:
            return
        del self._running[command.id]
        assert running.timer is not None
        running.timer.cancel()
        command.over()
        outbox = self._outlet.outbox
        outbox.finished(command.id)
        # Unless the gateway has ended it, or its results were lost and the stream ended with them.
        if outbox.streams.get(command.id) is running.stream and not running.stream.ended:
            end = running.stream.end(state, payload, error)
            if not running.stream.held:
                self._outlet.post(end)
