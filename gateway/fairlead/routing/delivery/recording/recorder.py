"""Stores what agents send, in order, and then sends them the receipt.

All pending messages of a session are stored as one batch, so a busy link costs few round trips and a quiet one none.
The result recorder stores what most links send, and the bulk recorder what is of the lane `bulk`; anything else, and
what they could not store, has one short task for each session. While Redis is away, it waits and repeats (an append may
be repeated), the agent's window fills up, and the agent waits: nothing is dropped and nothing grows. A receipt is sent
only after Redis has answered: what is acknowledged is stored.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import AppendResult, StoredEnd
from fairlead.fleet.schema import TargetState
from fairlead.hub.session import Session
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.delivery.recording.bulk_recorder import BulkRecorder
from fairlead.routing.delivery.recording.message_batch import MessageBatch
from fairlead.routing.delivery.recording.receipts import HELD_LIMIT, Receipts
from fairlead.routing.delivery.recording.result_recorder import ResultRecorder
from fairlead.routing.delivery.terminal_recorder import TerminalRecorder
from fairlead.routing.eviction import close_superseded
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.store.reply import Arg, integer
from fairlead.telemetry.logs import ids
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.close_codes import CloseCode

logger = logging.getLogger(__name__)

EVENTS_AGAIN = (0.1, 1.0)
"""The least and the greatest number of seconds after which events that could not be stored are tried again."""
TIMEOUT = 300.0
"""Seconds to wait for Redis with a batch that is not stored."""


class Recorder:
    def __init__(
        self,
        fleet: FleetStore,
        completion: Completion,
        terminals: TerminalRecorder,
        telemetry: TelemetryRecorder,
        tasks: BackgroundTasks,
        metrics: Metrics,
    ) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._records = fleet.records
        self._events = fleet.events
        self._memory = fleet.memory
        self._tenants = fleet.tenants
        self._gate = fleet.gate
        self._completion = completion
        self._terminals = terminals
        self._telemetry = telemetry
        self._tasks = tasks
        self._metrics = metrics
        self._after = Receipts(fleet, completion, telemetry, metrics)
        self._bulk = BulkRecorder(fleet, self._after, tasks, self._store_alone, self._failed)
        self._results = ResultRecorder(fleet, self._after, tasks, self._store_alone, self._failed)
        self._waiting: dict[Session, asyncio.Event] = {}
        """Sessions whose task waits because their events cannot be stored. The event is set when more is sent."""

    def record(self, session: Session) -> None:
        """Store the pending messages of the session, and what comes after them."""
        if self._waiting and (more := self._waiting.get(session)) is not None:
            more.set()
        elif self._terminals.on:
            self._tasks.spawn(self._run(session))
        elif not self._bulk.take(session):
            self._results.take(session)

    def _store_alone(self, session: Session, batch: MessageBatch) -> None:
        self._tasks.spawn(self._run(session, batch))

    async def _run(self, session: Session, batch: MessageBatch | None = None) -> None:
        """Store `batch`, and then what is pending, until nothing is."""
        try:
            batch = batch or _pending(session)
            while batch is not None:
                if not await self._record(session, batch):
                    session.discard_pending()
                    return
                batch = _pending(session)
        except Exception:
            self._failed(session)

    def _failed(self, session: Session) -> None:
        """Close the link. What was not stored has no receipt: the agent sends it again on its next one."""
        about = ids(agent=session.agent, session=session.sid)
        logger.exception("storing for %s failed: its link is closed", session.agent, extra=about)
        session.close(CloseCode.INTERNAL, "the gateway could not store what was sent")
        session.discard_pending()

    async def _record(self, session: Session, batch: MessageBatch) -> bool:
        """Store one batch and send the receipt. Returns False if this session may store nothing more."""
        while batch.ops or batch.events:
            try:
                if not await self._store_once(session, batch):
                    return False
            except BusUnavailable:
                if not session.open:
                    return False
                if not batch.ops and self._store.available:
                    await self._take_more(session, batch)
                elif not await wait_for_redis(self._store, TIMEOUT):
                    # The batch is dropped with the link: the agent has no receipt for it.
                    session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect again")
                    return False
        self._after.confirm(session, batch)
        return True

    async def _take_more(self, session: Session, batch: MessageBatch) -> None:
        """Only events of the batch are left, as in a Cluster whose primary of the events is away: results go on. Wait
        until the agent has sent more, or the events are due, and add what it has sent to the batch."""
        self._after.repay(session, batch)
        self._after.release(session, batch)
        now = asyncio.get_running_loop().time()
        if batch.again <= now:
            batch.again = now + random.uniform(*EVENTS_AGAIN)
        if not session.pending:
            more = self._waiting[session] = asyncio.Event()
            session.take_pending()  # nothing is pending, so the next message calls `record`
            try:
                async with asyncio.timeout(batch.again - now):
                    await more.wait()
            except TimeoutError:
                pass
            finally:
                del self._waiting[session]
        batch.add(session.take_pending(more=True))

    async def _store_once(self, session: Session, batch: MessageBatch) -> bool:
        """Try once to store what is left of the batch, and remove from it what is stored. Returns False if a newer link
        owns the agent. Raises BusUnavailable if something is left."""
        agent, gen = session.agent, session.gen
        await self._gate.wait_said(agent)
        if batch.terminals and self._terminals.on:
            await self._record_terminals(session, batch)
        appends: list[tuple[str, Answer[AppendResult]]] = [
            (command, self._records.append(command, agent, gen, ops, bulk=session.gives_way(command)))
            for command, ops in batch.ops.items()
        ]
        events = batch.due_events(asyncio.get_running_loop().time()) if batch.events else []
        most = self._tenants.events_bytes(agent, self._memory.events_bytes) if events else 0
        added = [self._events.add(agent, e.type, e.id, e.time, e.payload, most) for e in events]
        answers = await answers_or_errors([answer for _, answer in appends])
        failure: Exception | None = None
        fenced = False
        for (command, _), stored in zip(appends, answers, strict=True):
            if isinstance(stored, Exception):
                failure = stored
                continue
            steps = batch.ops.pop(command)
            fenced = fenced or stored.why == "fenced"
            await self._stored(session, command, stored, batch.codes.get(command, ""), steps)
        for event, done in zip(events, added, strict=True):
            try:
                batch.dropped += integer(await done)
                batch.events.remove(event)
                batch.again = 0.0
            except BusUnavailable as e:
                failure = e
        if batch.events and not events:
            failure = failure or BusUnavailable("events wait until they are tried again")
        if fenced:
            self._metrics.fenced.inc()
            await close_superseded(session, self._directory, self._store)
            return False
        if failure is not None:
            raise failure
        return True

    async def _record_terminals(self, session: Session, batch: MessageBatch) -> None:
        """Record what is about to be stored, and end the commands that could not be recorded: nothing of their output
        is stored. Raises BusUnavailable."""
        failed = await self._terminals.write(session.agent, batch.terminals)
        for command, how in failed.items():
            await self._end(session, command, how)
            batch.ops.pop(command, None)
        batch.terminals.clear()

    async def _stored(
        self, session: Session, command: str, stored: AppendResult, code: str, steps: Sequence[Arg]
    ) -> None:
        """Do what follows from the answer to an append of `steps`. `code` is that of the error with which the agent
        ended the command."""
        if stored.why == "gap":
            about = ids(agent=session.agent, session=session.sid, command=command)
            logger.error("results of %s from %s have a gap: the command is ended", command, session.agent, extra=about)
            await self._end(session, command, StoredEnd(code="results_gap", message="some of the results were lost"))
        elif stored.why == "fenced":
            session.close_stream(command)
            session.stop_timing(command)
        elif stored.why != "ok":
            self._after.over(session, command, stored)
        else:
            if TargetState(stored.state).over and self._after.lacks_origin(session, command):
                await self._after.find_origin(session, command)
            self._after.stored(session, command, stored, code, steps)

    async def _end(self, session: Session, command: str, how: StoredEnd) -> None:
        """End a command as failed that the agent still runs, and tell the agent to stop it. Raises BusUnavailable."""
        ended = await self._records.finish(command, session.agent, TargetState.FAILED, how)
        self._after.dismiss(session, command)
        if ended.why == "ok":
            self._completion.completed(command, session.agent, TargetState.FAILED.value, ended.followers, how.code)

    async def grant_withheld(self, session: Session, command: str) -> None:
        """Grant the credit that was withheld, if there is room in Redis now that a caller has read results."""
        if not session.withholds(command):
            return
        try:
            held = await self._records.held(command)
        except BusUnavailable:
            return  # the reader rings again
        if held > HELD_LIMIT or not session.ready:
            return
        credit = session.grant_withheld(command)
        if credit is not None:
            session.send(credit)


def _pending(session: Session) -> MessageBatch | None:
    """What the session has to store; None if that is nothing."""
    messages = session.take_pending()
    return MessageBatch(messages) if messages else None
