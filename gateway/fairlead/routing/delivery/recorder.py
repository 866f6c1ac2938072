"""Stores what agents send, in order, and tells them what is stored.

One short task per session that has something to store: it takes all that is pending as one batch, so a busy link
costs few round trips and a quiet one none. While Redis is away it waits and repeats (append may be repeated), the
agent's window fills and the agent waits: nothing is dropped and nothing grows. A receipt leaves only after the
store has answered: acknowledged is stored.
"""

from __future__ import annotations

import logging

from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import AppendResult, StoredEnd
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import TargetState
from fairlead.hub.session import Session, pending_size
from fairlead.routing.background_tasks import BackgroundTasks
from fairlead.routing.commands.completion import Completion
from fairlead.routing.delivery.append_ops import append_ops, error_code
from fairlead.routing.eviction import close_superseded
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Arg
from fairlead.telemetry.logs import ids
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import wall_ns
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import OVER, Ack, Cancel, Chunk, Credit, End, Event, FromAgent

logger = logging.getLogger(__name__)

HELD_LIMIT = 4 << 20
"""Bytes of one command's results that wait for their reader, when they are retained as a window: above it the agent
gets no more credit, so at most one window more comes."""
PATIENCE = 300.0
"""Seconds to wait for Redis with a batch in hand."""


class Recorder:
    def __init__(
        self,
        store: Pipeliner,
        directory: Directory,
        records: Commands,
        completion: Completion,
        telemetry: TelemetryRecorder,
        tasks: BackgroundTasks,
        metrics: Metrics,
    ) -> None:
        self._telemetry = telemetry
        self._store = store
        self._directory = directory
        self._records = records
        self._completion = completion
        self._tasks = tasks
        self._metrics = metrics

    def record(self, session: Session) -> None:
        """See to it that `session.pending` is stored."""
        session.recording = True
        self._tasks.spawn(self._run(session))

    async def _run(self, session: Session) -> None:
        try:
            while batch := session.take_pending():
                if not await self._record(session, batch):
                    session.forgo()
                    return
        except Exception:
            # What was not stored is not receipted: the agent sends it again on its next link.
            about = ids(agent=session.agent, session=session.sid)
            logger.exception("storing for %s failed; its link is closed", session.agent, extra=about)
            session.close(CloseCode.INTERNAL, "the gateway could not store what was sent")
            session.forgo()
        finally:
            session.recording = False

    async def _record(self, session: Session, batch: list[FromAgent | None]) -> bool:
        """Store one batch and send the receipt; False when this session may store nothing more."""
        steps: dict[str, list[Arg]] = {}
        sizes: dict[str, int] = {}
        codes: dict[str, str] = {}
        grants: dict[str, int] = {}
        events: list[Event] = []
        numbered = pending = 0
        for message in batch:
            pending += pending_size(message)
            numbered += not (isinstance(message, Event) and message.qos == 0)
            if isinstance(message, Event):
                events.append(message)
            elif isinstance(message, Ack | Chunk | End):
                steps.setdefault(message.id, []).extend(append_ops(message))
                if isinstance(message, Chunk):
                    sizes[message.id] = sizes.get(message.id, 0) + len(message.payload)
                else:
                    codes[message.id] = error_code(message)
            elif isinstance(message, Credit):
                grants[message.id] = grants.get(message.id, 0) + message.bytes
        while steps or events:
            try:
                if not await self._try(session, steps, events, codes):
                    return False
            except BusUnavailable:
                if not session.open:
                    return False
                if not await wait_for_redis(self._store, PATIENCE):
                    # What is in hand is given up with the link: the agent was not told that it is stored.
                    session.close(CloseCode.BUS_AWAY, "the gateway has lost Redis: connect again")
                    return False
        self._confirm(session, numbered, pending, sizes, grants)
        return True

    async def _try(
        self, session: Session, steps: dict[str, list[Arg]], events: list[Event], codes: dict[str, str]
    ) -> bool:
        """One attempt at all that is left; what succeeds leaves `steps` and `events`."""
        agent, gen = session.agent, session.gen
        asked: list[tuple[str, Answer[AppendResult]]] = [
            (command, self._records.append(command, agent, gen, todo)) for command, todo in steps.items()
        ]
        added = [self._records.add_event(agent, e.type, e.id, e.time, e.payload) for e in events]
        answers = await answers_or_errors([answer for _, answer in asked])
        failure: Exception | None = None
        fenced = False
        for (command, _), stored in zip(asked, answers, strict=True):
            if isinstance(stored, Exception):
                failure = stored
                continue
            del steps[command]
            fenced = fenced or stored.why == "fenced"
            await self._settle(session, command, stored, codes.get(command, ""))
        for event, done in zip(tuple(events), added, strict=True):
            try:
                await done
                events.remove(event)
            except BusUnavailable as e:
                failure = e
        if fenced:
            self._metrics.fenced.inc()
            await close_superseded(session, self._directory, self._store)
            return False
        if failure is not None:
            raise failure
        return True

    async def _settle(self, session: Session, command: str, stored: AppendResult, code: str) -> None:
        """`code`: of the error that the agent has just ended it with."""
        if stored.why == "gap":
            about = ids(agent=session.agent, session=session.sid, command=command)
            logger.error("results of %s from %s have a gap; the command is ended", command, session.agent, extra=about)
            how = StoredEnd(code="results_gap", message="a part of the results was lost")
            ended = await self._records.finish(command, session.agent, TargetState.FAILED, how)
            self._dismiss(session, command)
            if ended.why == "ok":
                self._completion.over(command, session.agent, TargetState.FAILED.value, ended.followers, how.code)
        elif stored.why == "fenced":
            session.end(command)
            session.timed(command)
        elif stored.why != "ok":
            # Over, or gone with Redis's data. If it was this agent that ended it, the answer to that was lost.
            self._dismiss(session, command)
            self._completion.forget(command, session.agent)
            self._completion.wake(command, stored.followers)
        elif TargetState(stored.state).over:
            session.end(command)
            await self._over(session, command, stored, code)
        else:
            self._completion.wake(command, stored.followers)
            stream = session.link.stream(command)
            if stream is not None and stored.held > HELD_LIMIT:
                stream.full = True

    async def _over(self, session: Session, command: str, stored: AppendResult, code: str) -> None:
        """The agent ended the command."""
        timing = session.timed(command)
        if timing is None:
            self._completion.over(command, session.agent, stored.state, stored.followers, code)
            return
        timing.stored, timing.code = wall_ns(), code
        if timing.origin is None and self._telemetry.tracing.on:
            try:  # it was begun on another link, which knew
                timing.origin = await self._records.origin(command)
            except BusUnavailable:
                pass
        kept = self._completion.over(
            command, session.agent, stored.state, stored.followers, code, timing.origin, session.sid
        )
        self._telemetry.ended(session, command, timing, stored.state, kept)

    async def make_room(self, session: Session, command: str) -> None:
        """A reader has come on: grant what was withheld for it, if there is room in the store."""
        stream = session.link.stream(command)
        if stream is None or not stream.full:
            return
        try:
            held = await self._records.held(command)
        except BusUnavailable:
            return  # the reader rings again
        if held > HELD_LIMIT or not session.ready:
            return
        size, stream.withheld, stream.full = stream.withheld, 0, False
        credit = session.link.repay(command, size)
        if credit is not None:
            session.send(credit)

    def _dismiss(self, session: Session, command: str) -> None:
        """Nobody waits for more of this command: an agent that still runs it should stop."""
        credit = session.dismiss(command)
        session.timed(command)
        session.send(Cancel(id=command, why=OVER))
        if credit is not None:
            session.send(credit)

    def _confirm(
        self, session: Session, numbered: int, pending: int, sizes: dict[str, int], grants: dict[str, int]
    ) -> None:
        """Send the receipt, and credit: for what was stored, and at once for what nobody wants (`grants`)."""
        self._metrics.stored_bytes.inc(sum(sizes.values()))
        if session.open:
            if numbered:
                session.send(session.link.store(numbered))
            for command, size in sizes.items():
                stream = session.link.stream(command)
                if stream is not None and stream.full:
                    stream.withheld += size
                elif (credit := session.link.repay(command, size)) is not None:
                    session.send(credit)
            for command, size in grants.items():
                if size:
                    session.send(Credit(id=command, bytes=size))
        session.relieved(pending)
