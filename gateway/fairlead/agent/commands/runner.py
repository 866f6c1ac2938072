"""The commands of this agent: each is accepted once, run by its handler and ended once.

The session calls it with what comes from the gateway. A command is acknowledged before its handler starts and, if there
is a journal, after the journal has it; until then its ack, its cancel and its repetitions wait. A command ends when its
handler does, when it is cancelled, or at its deadline. A handler that does not stop then is waited for only briefly:
the command is ended, and whatever the handler still writes is discarded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.agent.commands.command import Command
from fairlead.agent.commands.executor import HandlerExecutor, journal_error
from fairlead.agent.commands.handler import Handler, unknown_method
from fairlead.agent.commands.running import (
    CANCEL_REASONS,
    CANCELLED,
    LOST,
    STOPPING,
    TIMEOUT,
    HandlerOutcome,
    RunningCommand,
    StopReason,
)
from fairlead.agent.errors import CommandError, JournalFailed
from fairlead.agent.journal.journal import Journal
from fairlead.agent.journal.records import Accepted
from fairlead.agent.link.sender import Sender
from fairlead.wire.command_stream import CommandStream
from fairlead.wire.messages import Ack, Cancel, Cmd, Error

if TYPE_CHECKING:
    from fairlead.agent.verification.command_verifier import CommandVerifier, VerifiedCommand

logger = logging.getLogger("fairlead.agent")

OPEN_LIMIT = 1_000
"""Maximum number of open commands, including those whose results are not stored yet. It equals the number that a
gateway queues for an agent, so that no queued command is refused, and is below the 1,024 that hello can name."""
STOP_TIMEOUT = 8.0
"""Seconds for a handler to stop: the protocol gives 10, and an exec needs 3 to be killed."""


class CommandRunner:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        sender: Sender,
        journal: Journal | None = None,
        restartable: Iterable[Accepted] = (),
        disabled: Mapping[str, str] | None = None,
        verifier: CommandVerifier | None = None,
    ) -> None:
        """`restartable` are the commands that the previous process had accepted and that may run again once a welcome
        names them. `disabled` maps methods that are refused to the reason. With a `verifier`, which needs a journal,
        only signed commands run.
        """
        self._handlers = handlers
        self._disabled = disabled or {}
        self._verifier = verifier
        self._sender = sender
        self._journal = journal
        self._restartable = list(restartable)
        self._running: dict[str, RunningCommand] = {}
        self._admitting: dict[str, asyncio.Future[None]] = {}
        """Commands that are not in the journal yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The handlers' tasks, including those of commands that were ended although their handler did not stop."""
        self._executor = HandlerExecutor(sender, handlers)
        self._loop = asyncio.get_running_loop()

    # -- called by the session -----------------------------------------------------------------------

    def on_command(self, cmd: Cmd) -> None:
        """Accept the command, refuse it, or answer that it is known."""
        outbox = self._sender.outbox
        if (admitting := self._admitting.get(cmd.id)) is not None:
            admitting.add_done_callback(lambda _: self.on_command(cmd))
            return
        if outbox.known(cmd.id):
            self._sender.send_now(Ack(id=cmd.id, state="duplicate"))
            return
        try:
            verified = self._verify(cmd)
            handler, arguments = self._prepare(verified.cmd if verified is not None else cmd)
        except CommandError as e:
            self._refuse(cmd.id, e.to_wire())
            return
        window = self._sender.limits.window
        if self._journal is None:
            self._sender.send_now(Ack(id=cmd.id))
            self._start(self._open(cmd, handler, outbox.opened(cmd, window), None), arguments)
            return
        cmd = verified.cmd if verified is not None else cmd
        try:
            admitted = self._journal.accept(cmd, verified.remember_until if verified is not None else 0)
        except JournalFailed as e:
            self._executor.cancel_reservation(handler)
            self._refuse(cmd.id, journal_error(e))
            return
        self._admitting[cmd.id] = admitted
        running = self._open(cmd, handler, outbox.opened(cmd, window), verified)
        admitted.add_done_callback(partial(self._on_admitted, running, arguments))

    def on_cancel(self, cancel: Cancel) -> None:
        if (running := self._running.get(cancel.id)) is not None:
            self._stop(running, CANCEL_REASONS.get(cancel.why, CANCELLED))
        elif (stream := self._sender.outbox.streams.get(cancel.id)) is not None:
            self._discard_output(stream)  # its handler has ended, but its end may wait behind output that has no credit

    def on_progress(self, commands: Iterable[str]) -> None:
        """These commands may have more credit or more input."""
        for command in commands:
            if (running := self._running.get(command)) is not None:
                running.command._wake()

    def on_resume(self, lost: Iterable[str]) -> None:
        """A link was welcomed. The gateway has ended the `lost` commands, or lost their results: nobody waits for
        them.
        """
        for command in lost:
            if (running := self._running.get(command)) is not None:
                logger.warning("stopping command %s: the gateway no longer has it", command)
                running.command._close()
                self._stop(running, LOST)
        restartable, self._restartable = self._restartable, []
        for accepted in restartable:
            if (stream := self._sender.outbox.streams.get(accepted.cmd.id)) is not None:
                self._restart(accepted, stream)

    def on_journal_room(self) -> None:
        """The journal has room: handlers that waited for it may write."""
        self.on_progress(tuple(self._running))

    async def close(self) -> None:
        """Stop everything that runs, and wait until it has ended or is no longer waited for."""
        for running in tuple(self._running.values()):
            self._stop(running, STOPPING)
        if self._admitting:
            await asyncio.wait(self._admitting.values(), timeout=STOP_TIMEOUT)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT + 1)
        await self._executor.close()

    # -- beginning -----------------------------------------------------------------------------------

    def _verify(self, cmd: Cmd) -> VerifiedCommand | None:
        """The command as it was signed; None if this agent trusts no keys and runs every command. Raises
        CommandError."""
        if self._verifier is None:
            return None
        assert self._journal is not None  # `Agent` refuses trusted keys without a journal
        return self._verifier.verify(cmd, self._journal)

    def _prepare(self, cmd: Cmd) -> tuple[Handler, dict[str, Any]]:
        """The handler, for which a slot is reserved from now on, and its arguments. Raises CommandError."""
        handler = self._handlers.get(cmd.method)
        if handler is None:
            reason = self._disabled.get(cmd.method) or unknown_method(cmd.method, self._handlers)
            raise CommandError("unknown_method", reason)
        arguments = handler.arguments(cmd.payload)
        # Both count: a stream may still wait for its receipt when its handler has ended, and a handler may outlive its
        # stream.
        if max(len(self._sender.outbox.streams), len(self._tasks)) >= OPEN_LIMIT:
            raise CommandError("busy", f"{OPEN_LIMIT} commands are open, the limit: try again later", temporary=True)
        self._executor.reserve(handler)
        return handler, arguments

    def _refuse(self, command: str, error: Error) -> None:
        self._sender.send_now(Ack(id=command, state="refused", error=error))

    def _open(
        self, cmd: Cmd, handler: Handler, stream: CommandStream, verified: VerifiedCommand | None
    ) -> RunningCommand:
        """Open the command: from now on its deadline counts, and it can be cancelled."""
        command = Command(cmd, stream, self._sender, verified.input if verified is not None else None)
        running = self._running[cmd.id] = RunningCommand(command, stream, handler)
        command._on_bad_input = partial(self._reject_input, running)
        running.timer = self._loop.call_later(cmd.deadline / 1000, self._stop, running, TIMEOUT)
        return running

    def _start(self, running: RunningCommand, arguments: dict[str, Any]) -> None:
        running.task = self._loop.create_task(self._run(running, arguments))
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def _on_admitted(self, running: RunningCommand, arguments: dict[str, Any], admitted: asyncio.Future[None]) -> None:
        """The journal has recorded the command, or has failed to."""
        command, failure = running.command.id, admitted.exception()
        del self._admitting[command]
        if failure is None and running.stop is None:
            self._sender.send_now(Ack(id=command))
            self._start(running, arguments)
            return
        self._executor.cancel_reservation(running.handler)
        if failure is None and running.stop is not None:
            self._sender.send_now(Ack(id=command))
            self._end(running, HandlerOutcome(running.stop.state, error=running.stop.error))
        elif isinstance(failure, JournalFailed):
            assert running.timer is not None
            running.timer.cancel()
            del self._running[command]
            self._sender.outbox.streams.pop(command, None)
            self._refuse(command, journal_error(failure))

    def _restart(self, accepted: Accepted, stream: CommandStream) -> None:
        """Run a command again that had neither output nor input in the previous process, as the gateway allows."""
        assert self._journal is not None
        left = min(max(0, accepted.expiry - int(time.time() * 1000)), accepted.cmd.deadline)
        cmd = msgspec.structs.replace(accepted.cmd, deadline=left, attempt=accepted.cmd.attempt + 1)
        try:
            verified = self._verifier.verify_again(cmd) if self._verifier is not None else None
            cmd = verified.cmd if verified is not None else cmd
            handler, arguments = self._prepare(cmd)
        except CommandError as e:
            self._send_end(cmd.id, stream, HandlerOutcome("error", error=e.to_wire()))
            return
        try:
            self._journal.restarted(accepted)
        except JournalFailed as e:
            self._executor.cancel_reservation(handler)
            self._send_end(cmd.id, stream, HandlerOutcome("error", error=journal_error(e)))
            return
        logger.info("running command %s of the previous process again", cmd.id)
        self._start(self._open(cmd, handler, stream, verified), arguments)

    # -- running and ending --------------------------------------------------------------------------

    async def _run(self, running: RunningCommand, arguments: dict[str, Any]) -> None:
        outcome = await self._executor.execute(running.handler, running.command, arguments)
        if running.stop is not None:
            outcome = HandlerOutcome(running.stop.state, error=running.stop.error)
        self._end(running, outcome)

    def _stop(self, running: RunningCommand, reason: StopReason) -> None:
        if running.stop is not None:
            return
        running.stop = reason
        assert running.timer is not None
        running.timer.cancel()
        if running.task is None:
            return  # `_on_admitted` ends it
        running.timer = self._loop.call_later(STOP_TIMEOUT, self._give_up, running)
        # Not before the task's first step: a task that is cancelled before it has begun cannot clean up.
        self._loop.call_soon(running.task.cancel)

    def _reject_input(self, running: RunningCommand, rejected: CommandError) -> None:
        logger.warning("ending command %s: %s", running.command.id, rejected.message)
        self._stop(running, StopReason("error", rejected.to_wire(), "its input was not what the caller has signed"))

    def _give_up(self, running: RunningCommand) -> None:
        assert running.stop is not None
        logger.warning(
            "the handler of %s did not stop within %g s (%s): command %s is ended without it",
            running.command.method, STOP_TIMEOUT, running.stop.event, running.command.id,
        )  # fmt: skip
        self._end(running, HandlerOutcome(running.stop.state, error=running.stop.error))

    def _end(self, running: RunningCommand, outcome: HandlerOutcome) -> None:
        """End a command. Only the first call has an effect."""
        command = running.command
        if self._running.get(command.id) is not running:
            return
        del self._running[command.id]
        assert running.timer is not None
        running.timer.cancel()
        command._close()
        if running.stop is not None:
            self._discard_output(running.stream)
        self._send_end(command.id, running.stream, outcome)

    def _discard_output(self, stream: CommandStream) -> None:
        """Discard the output that has not been sent: it is no longer wanted."""
        for message in stream.cut():
            self._sender.post(message)

    def _send_end(self, command: str, stream: CommandStream, outcome: HandlerOutcome) -> None:
        outbox = self._sender.outbox
        outbox.finished(command)
        # No end is sent if the gateway has ended the command, or if its results were lost and the stream ended with
        # them.
        if outbox.streams.get(command) is stream and not stream.ended:
            end = stream.end(outcome.state, outcome.payload, outcome.error)
            if not stream.held:
                self._sender.post(end)
