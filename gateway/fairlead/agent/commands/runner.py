"""The commands of this agent: each accepted once, run by its handler, ended once.

Called by the session with what comes from the gateway. A command is acknowledged before its handler starts, and
not before the journal has it, if there is one: until then its ack, its cancel and its repetitions wait. It ends
by itself, by a cancel or at its deadline; the latter two do not wait long for a handler that will not stop: the
command is ended and whatever the handler still says is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.handler import Handler, RunsIn
from fairlead.agent.commands.output import item, result
from fairlead.agent.commands.processes import ProcessRunner
from fairlead.agent.commands.threads import ThreadRunner
from fairlead.agent.commands.tracing import handler_span
from fairlead.agent.errors import CommandError, JournalFailed
from fairlead.agent.journal.journal import Journal
from fairlead.agent.journal.records import Accepted
from fairlead.agent.link.sender import Sender, too_large
from fairlead.wire import messages
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import Ack, Cancel, Cmd, EndState, Error

logger = logging.getLogger("fairlead.agent")

OPEN = 1_000
"""Commands at once, with those whose results are not stored yet: as many as a gateway lets wait for an agent, so that
none is refused that had been queued, and fewer than the 1,024 that hello can name."""
STOP_TIMEOUT = 8.0
"""Seconds for a handler to stop: the protocol gives 10, an exec needs 3 to be killed."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a command is ended from outside."""

    state: EndState
    error: Error | None
    late: str
    """For the log, when the handler does not stop."""


CANCELLED = StopReason("cancelled", Error(code="cancelled", message="cancelled while it ran"), "cancelled")
TIMEOUT = StopReason("timeout", Error(code="deadline", message="the deadline passed while it ran"), "its deadline")
STOPPING = StopReason("cancelled", Error(code="cancelled", message="the agent was stopped"), "the agent's end")
LOST = StopReason("cancelled", None, "the gateway had ended it")
_WHY = {messages.DEADLINE: TIMEOUT, messages.OVER: LOST}
"""What the word of a cancel means, where it is not that the platform asked for it."""


@dataclass(slots=True)
class RunningCommand:
    command: Command
    stream: CommandStream
    handler: Handler
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    stop: StopReason | None = None


class CommandRunner:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        sender: Sender,
        journal: Journal | None = None,
        again: Iterable[Accepted] = (),
        off: Mapping[str, str] | None = None,
    ) -> None:
        """`again`: what the former process had accepted and may begin anew, once a welcome names it. `off`: methods
        that are refused, and why.
        """
        self._handlers = handlers
        self._off = off or {}
        self._sender = sender
        self._journal = journal
        self._again = list(again)
        self._running: dict[str, RunningCommand] = {}
        self._admitting: dict[str, asyncio.Future[None]] = {}
        """Those that the journal does not have yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Also of commands that were ended while their handler would not stop."""
        self._processes = ProcessRunner()
        self._runners: dict[RunsIn, ThreadRunner | ProcessRunner] = {
            "thread": ThreadRunner(),
            "process": self._processes,
        }
        self._loop = asyncio.get_running_loop()

    # -- what the session tells --------------------------------------------------------------------

    def commanded(self, cmd: Cmd) -> None:
        """Accept, refuse, or tell that it is known."""
        outbox = self._sender.outbox
        if (admitting := self._admitting.get(cmd.id)) is not None:
            admitting.add_done_callback(lambda _: self.commanded(cmd))
            return
        if outbox.known(cmd.id):
            self._sender.tell(Ack(id=cmd.id, state="duplicate"))
            return
        try:
            handler, arguments = self._judge(cmd)
        except CommandError as e:
            self._refuse(cmd.id, e.to_wire())
            return
        if self._journal is None:
            self._sender.tell(Ack(id=cmd.id))
            self._start(self._opened(cmd, handler, outbox.opened(cmd, self._sender.limits.window)), arguments)
            return
        try:
            admitted = self._journal.accept(cmd)
        except JournalFailed as e:
            self._unbook(handler)
            self._refuse(cmd.id, _wire(e))
            return
        self._admitting[cmd.id] = admitted
        running = self._opened(cmd, handler, outbox.opened(cmd, self._sender.limits.window))
        admitted.add_done_callback(partial(self._admitted, running, arguments))

    def cancelled(self, cancel: Cancel) -> None:
        if (running := self._running.get(cancel.id)) is not None:
            self._stop(running, _WHY.get(cancel.why, CANCELLED))
        elif (stream := self._sender.outbox.streams.get(cancel.id)) is not None:
            self._cut(stream)  # it has ended, and its end may wait behind output that has no credit

    def moved(self, commands: Iterable[str]) -> None:
        for command in commands:
            if (running := self._running.get(command)) is not None:
                running.command.moved()

    def resumed(self, lost: Iterable[str]) -> None:
        """A link took over. The gateway has ended those that are `lost`, or their results: nobody waits for them."""
        for command in lost:
            if (running := self._running.get(command)) is not None:
                logger.warning("the gateway does not go on with command %s: it is stopped", command)
                running.command.over()
                self._stop(running, LOST)
        again, self._again = self._again, []
        for accepted in again:
            if (stream := self._sender.outbox.streams.get(accepted.cmd.id)) is not None:
                self._begin_again(accepted, stream)

    def freed(self) -> None:
        """The journal has room: handlers that waited for it may write."""
        self.moved(tuple(self._running))

    # -- the agent's end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """End all that runs, and wait until it has ended or been given up."""
        for running in tuple(self._running.values()):
            self._stop(running, STOPPING)
        if self._admitting:
            await asyncio.wait(self._admitting.values(), timeout=STOP_TIMEOUT)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT + 1)
        await self._processes.close()

    # -- running -----------------------------------------------------------------------------------

    def _judge(self, cmd: Cmd) -> tuple[Handler, dict[str, Any]]:
        """Its handler, which has a place from now on, and the arguments. Raises CommandError if it cannot run."""
        handler = self._handlers.get(cmd.method)
        if handler is None:
            why = self._off.get(cmd.method, f"this agent has no method {cmd.method!r}")
            raise CommandError("unknown_method", why)
        arguments = handler.arguments(cmd.payload)
        self._book(handler)
        return handler, arguments

    def _refuse(self, command: str, error: Error) -> None:
        self._sender.tell(Ack(id=command, state="refused", error=error))

    def _opened(self, cmd: Cmd, handler: Handler, stream: CommandStream) -> RunningCommand:
        """Its deadline runs, and it can be cancelled."""
        running = self._running[cmd.id] = RunningCommand(Command(cmd, stream, self._sender), stream, handler)
        running.timer = self._loop.call_later(cmd.deadline / 1000, self._stop, running, TIMEOUT)
        return running

    def _start(self, running: RunningCommand, arguments: dict[str, Any]) -> None:
        running.task = self._loop.create_task(self._run(running, arguments))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def _admitted(self, running: RunningCommand, arguments: dict[str, Any], admitted: asyncio.Future[None]) -> None:
        """The journal has it, or could not take it."""
        command, failure = running.command.id, admitted.exception()
        del self._admitting[command]
        if failure is None and running.stop is None:
            self._sender.tell(Ack(id=command))
            self._start(running, arguments)
            return
        self._unbook(running.handler)
        if failure is None and running.stop is not None:
            self._sender.tell(Ack(id=command))
            self._end(running, running.stop.state, error=running.stop.error)
        elif isinstance(failure, JournalFailed):
            assert running.timer is not None
            running.timer.cancel()
            del self._running[command]
            self._sender.outbox.streams.pop(command, None)
            self._refuse(command, _wire(failure))

    def _begin_again(self, accepted: Accepted, stream: CommandStream) -> None:
        """The former process has accepted it, and nothing came of it; the gateway still wants it, and said it may."""
        assert self._journal is not None
        left = min(max(0, accepted.expiry - int(time.time() * 1000)), accepted.cmd.deadline)
        cmd = msgspec.structs.replace(accepted.cmd, deadline=left, attempt=accepted.cmd.attempt + 1)
        try:
            handler, arguments = self._judge(cmd)
        except CommandError as e:
            self._finish(cmd.id, stream, "error", error=e.to_wire())
            return
        try:
            self._journal.begun_again(accepted)
        except JournalFailed as e:
            self._unbook(handler)
            self._finish(cmd.id, stream, "error", error=_wire(e))
            return
        logger.info("command %s of the former process is begun again", cmd.id)
        self._start(self._opened(cmd, handler, stream), arguments)

    def _book(self, handler: Handler) -> None:
        # Both count: a stream may wait for its receipt after its handler, a handler may outstay its stream.
        if max(len(self._sender.outbox.streams), len(self._tasks)) >= OPEN:
            raise CommandError("busy", f"{OPEN} commands are open, the limit: try again later", temporary=True)
        if handler.runs_in != "loop" and not self._runners[handler.runs_in].slots.book():
            raise CommandError(
                "busy", f"too many commands wait for a {handler.runs_in}: try again later", temporary=True
            )

    def _unbook(self, handler: Handler) -> None:
        if handler.runs_in != "loop":
            self._runners[handler.runs_in].slots.give_up()

    def _stop(self, running: RunningCommand, why: StopReason) -> None:
        if running.stop is not None:
            return
        running.stop = why
        assert running.timer is not None
        running.timer.cancel()
        if running.task is None:
            return  # `_admitted` looks
        running.timer = self._loop.call_later(STOP_TIMEOUT, self._give_up, running)
        # Not before the task's first step: one that is cancelled before it began could not clean up.
        self._loop.call_soon(running.task.cancel)

    def _give_up(self, running: RunningCommand) -> None:
        assert running.stop is not None
        logger.warning(
            "the handler of %s did not stop within %g s of %s: command %s is ended without it",
            running.command.method, STOP_TIMEOUT, running.stop.late, running.command.id,
        )  # fmt: skip
        self._end(running, running.stop.state, error=running.stop.error)

    async def _run(self, running: RunningCommand, arguments: dict[str, Any]) -> None:
        """From accepted to the end, whatever the handler does."""
        state: EndState = "ok"
        payload, error = b"", None
        try:
            with handler_span(running.command, self._sender.session):
                payload = await self._call(running.handler, running.command, arguments)
            if len(payload) > self._sender.payload_limit:
                raise CommandError("result_too_large", too_large(len(payload), self._sender.payload_limit).message)
        except asyncio.CancelledError:
            state, error = "error", Error(code="handler_failed", message="the handler cancelled itself")
        except CommandError as e:
            state, error = "error", e.to_wire()
        except JournalFailed as e:
            state, error = "error", _wire(e)
        except (Exception, SystemExit) as e:
            logger.exception("the handler of %s failed", running.command.method)
            failure = CommandError("handler_failed", f"{type(e).__name__}: {e}")
            state, error = "error", failure.to_wire()
        if running.stop is not None:
            state, payload, error = running.stop.state, b"", running.stop.error
        self._end(running, state, payload if error is None else b"", error)

    async def _call(self, handler: Handler, command: Command, arguments: dict[str, Any]) -> bytes:
        """Where it belongs; the end's payload."""
        if handler.runs_in != "loop":
            return await self._runners[handler.runs_in].run(handler, command, arguments)
        given = (command,) if handler.takes_command else ()
        if not handler.streams:
            return result(await handler.function(*given, **arguments))
        async with aclosing(handler.function(*given, **arguments)) as values:
            async for value in values:
                await command.write(*item(value))
        return b""

    def _end(self, running: RunningCommand, state: EndState, payload: bytes = b"", error: Error | None = None) -> None:
        """Once: the first to come wins."""
        command = running.command
        if self._running.get(command.id) is not running:
            return
        del self._running[command.id]
        assert running.timer is not None
        running.timer.cancel()
        command.over()
        if running.stop is not None:
            self._cut(running.stream)
        self._finish(command.id, running.stream, state, payload, error)

    def _cut(self, stream: CommandStream) -> None:
        """Nobody waits for the rest of its output."""
        for message in stream.cut():
            self._sender.post(message)

    def _finish(
        self, command: str, stream: CommandStream, state: EndState, payload: bytes = b"", error: Error | None = None
    ) -> None:
        outbox = self._sender.outbox
        outbox.finished(command)
        # Unless the gateway has ended it, or its results were lost and the stream ended with them.
        if outbox.streams.get(command) is stream and not stream.ended:
            end = stream.end(state, payload, error)
            if not stream.held:
                self._sender.post(end)


def _wire(failure: JournalFailed) -> Error:
    return Error(code=failure.code, message=failure.message, temporary=True)
