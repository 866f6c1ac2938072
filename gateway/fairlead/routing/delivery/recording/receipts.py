"""What follows once messages of an agent are stored: ends are counted and told, receipts and credit are sent.

The recorders call it with each answer of Redis. It waits for nothing but the origin of a command
that was sent on another link.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import AppendResult
from fairlead.fleet.failover.recent_steps import StoredStep
from fairlead.fleet.schema import TargetState
from fairlead.hub.session import Session
from fairlead.routing.commands.completion import ENDS_ONLY, Completion
from fairlead.routing.commands.output_digest import output_of_steps
from fairlead.routing.commands.result_doorbells import pack_added
from fairlead.routing.delivery.recording.bulk_answer import BulkAnswer
from fairlead.routing.delivery.recording.message_batch import MessageBatch
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.observability.telemetry_recorder import FAILED_STATES, TelemetryRecorder
from fairlead.store.reply import Arg
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire.messages import OVER, Cancel, Credit

HELD_LIMIT = 4 << 20
"""Bytes of one command's results that wait for their reader, if they are retained as a window. Above it the agent gets
no more credit, so at most one window more arrives."""
_OVER = frozenset(state.value for state in TargetState if state.over)


class Receipts:
    def __init__(
        self, fleet: FleetStore, completion: Completion, telemetry: TelemetryRecorder, metrics: Metrics
    ) -> None:
        self._records = fleet.records
        self._kept = fleet.kept_results
        self._completion = completion
        self._telemetry = telemetry
        self._metrics = metrics

    def lacks_origin(self, session: Session, command: str) -> bool:
        """Whether the end of the command has a span, which needs its origin, and only its record knows that: the
        command was sent on another link."""
        if not self._telemetry.tracing.on or session.timings is None:
            return False
        timing = session.timing_of(command)
        return timing is not None and timing.origin is None

    async def find_origin(self, session: Session, command: str) -> None:
        if (timing := session.timing_of(command)) is not None:
            try:
                timing.origin = await self._records.origin(command)
            except BusUnavailable:
                pass

    def stored(self, session: Session, command: str, stored: AppendResult, code: str, steps: Sequence[Arg]) -> None:
        """An append of `steps` was stored. `code` is that of the error with which the agent ended the command."""
        self._records.recent.results_stored(command, session.agent, session.memory, steps)
        self._follow_up(session, command, stored, code, steps)

    def remember_together(self, answers: Sequence[BulkAnswer]) -> None:
        """Note what was stored in one call, so that it can be said again after a failover."""
        if answers:
            self._records.recent.stored_together(
                [StoredStep(a.sent.command, a.sent.agent, a.session.memory, a.sent.steps) for a in answers]
            )

    def settle(self, answer: BulkAnswer, stored: AppendResult) -> None:
        """Do what follows for an answer that was stored with others, after `remember_together`."""
        session, command = answer.session, answer.sent.command
        self._follow_up(session, command, stored, answer.code, answer.sent.steps)
        self._metrics.stored_bytes.inc(answer.size)
        if session.open:
            session.send(session.store(len(answer.messages)))
            if answer.size and (credit := session.repay(command, answer.size)) is not None:
                session.send(credit)
        session.confirm_stored(answer.pending)
        self._kept.stored += answer.pending

    def _follow_up(self, session: Session, command: str, stored: AppendResult, code: str, steps: Sequence[Arg]) -> None:
        if stored.state in _OVER:
            session.close_stream(command)
            self._completed(session, command, stored, code, steps)
            return
        if stored.added:
            self._completion.notify_results(command, stored.followers, _added(session, stored, steps))
        if stored.held > HELD_LIMIT:
            session.withhold(command)

    def _completed(self, session: Session, command: str, stored: AppendResult, code: str, steps: Sequence[Arg]) -> None:
        """Do what follows after the agent has ended the command."""
        runs = sum([lease.startswith(ENDS_ONLY) for lease in stored.followers])
        sent = output_of_steps(steps) if runs and stored.seq >= 0 else None
        added = _added(session, stored, steps) if runs < len(stored.followers) else b""
        timing = session.stop_timing(command)
        if timing is None:
            self._completion.completed(
                command, session.agent, stored.state, stored.followers, code, sent=sent, added=added
            )
            return
        timing.stored, timing.code = wall_ns(), code
        named = self._telemetry.tracing.on or stored.state in FAILED_STATES
        sid = session.sid if named else ""  # it has to be unpacked
        kept = self._completion.completed(
            command, session.agent, stored.state, stored.followers, code, timing.origin, sid, sent, added
        )
        self._telemetry.agent_ended_command(session, command, timing, stored.state, kept)

    def over(self, session: Session, command: str, stored: AppendResult) -> None:
        """The command of an append was over, or gone with Redis' data. If this agent ended it, the answer to an earlier
        append was lost."""
        self.dismiss(session, command)
        self._completion.forget(command, session.agent)
        self._completion.notify(command, stored.followers)

    def dismiss(self, session: Session, command: str) -> None:
        """Tell the agent to stop a command that is over."""
        credit = session.dismiss_stream(command)
        session.stop_timing(command)
        session.send(Cancel(id=command, why=OVER))
        if credit is not None:
            session.send(credit)

    def confirm(self, session: Session, batch: MessageBatch) -> None:
        """Send the receipt for a stored batch, and the credit."""
        if batch.dropped:
            self._metrics.events_dropped.inc(batch.dropped)
        if session.open:
            if batch.numbered or batch.dropped:
                session.send(session.store(batch.numbered, batch.dropped))
            self.repay(session, batch)
        else:
            self._metrics.stored_bytes.inc(sum(batch.sizes.values()))
        self.release(session, batch)

    def release(self, session: Session, batch: MessageBatch) -> None:
        """Stop counting as pending what is stored."""
        stored = batch.release()
        session.confirm_stored(stored)
        self._kept.stored += stored

    def repay(self, session: Session, batch: MessageBatch) -> None:
        """Send the credit for results that are stored."""
        self._metrics.stored_bytes.inc(sum(batch.sizes.values()))
        for command, size in batch.sizes.items():
            if (credit := session.repay(command, size)) is not None:
                session.send(credit)
        for command, size in batch.grants.items():
            if size:
                session.send(Credit(id=command, bytes=size))
        batch.sizes.clear()
        batch.grants.clear()


def _added(session: Session, stored: AppendResult, steps: Sequence[Arg]) -> bytes:
    """What is told to those who follow the command."""
    return pack_added(session.agent, steps, stored) if stored.followers else b""
