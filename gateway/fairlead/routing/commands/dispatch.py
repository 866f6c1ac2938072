"""The caller's side of a command: take it in, find the agent's node, ring there.

Called by the API. Record, due time and the agent's list go out in one batch, in this order, so that a node that
dies between any two of them leaves something the keeper finds. An absent agent is told apart: unknown (never seen),
offline (fails at once, unless the command may queue) and away (it was here a moment ago and is waited for). Input for a
command that stands goes through `input`.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum, auto

from fairlead.bus.doorbell import CancelRequested, CommandQueued, LinkSuperseded
from fairlead.bus.inbox import Inbox
from fairlead.errors import (
    AgentOffline,
    AgentUnknown,
    BusUnavailable,
    FairleadError,
    IdempotencyConflict,
    NotAnswered,
    OutcomeUnknown,
    Rebuilding,
    RecordExpired,
    Unavailable,
)
from fairlead.fleet.command_record import CommandRecord, NewRecord, StoredEnd
from fairlead.fleet.commands import Commands
from fairlead.fleet.data_epoch import DataEpochs
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory, LimitReached
from fairlead.fleet.schema import AWAY_MS, OPEN_LIMIT, REMEMBERED_MS, AgentRow, Presence, TargetState
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.request import AcceptedCommand, CommandRequest
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import CANCEL_AGAIN_MS, DOUBT, POST_VALID_MS, RING_AGAIN_MS, wait_for_redis
from fairlead.store.answer import answers_or_errors
from fairlead.store.pipeliner import Pipeliner
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.request_trace import RequestTrace
from fairlead.telemetry.tracing import Tracing, wall_ns
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.ids import uuid7

REBUILDING = "Redis has lost its data, and the agents are being claimed again"


BINDING_MARGIN_MS = 60_000
"""What a key is bound to is remembered for a little longer than the key: a call that read the binding in its last
moment may act on it after that."""


class Write(Enum):
    """How a record came to stand in Redis."""

    NEW = auto()
    OLDER = auto()
    """It stood there before."""
    DOUBTED = auto()
    """By this call, as it seems, whose answer did not come."""


class Dispatcher:
    def __init__(
        self,
        store: Pipeliner,
        directory: Directory,
        records: Commands,
        eras: DataEpochs,
        due: DeadlineQueue,
        inbox: Inbox,
        completion: Completion,
        followers: Followers,
        membership: Membership,
        metrics: Metrics,
        tracing: Tracing,
        retention_ms: int,
    ) -> None:
        self._store = store
        self._directory = directory
        self._records = records
        self._eras = eras
        self._due = due
        self._inbox = inbox
        self._completion = completion
        self._followers = followers
        self._membership = membership
        self._metrics = metrics
        self._tracing = tracing
        self._retention_ms = retention_ms

    async def submit(
        self, order: CommandRequest, follow: bool = False, request_trace: RequestTrace | None = None
    ) -> AcceptedCommand:
        """Take the command in; with `follow` this node is its follower from the start. `story` is told how it goes.

        Raises AgentUnknown, AgentOffline, IdempotencyConflict, RecordExpired, Unavailable and BusUnavailable, after all
        of which nothing runs, and OutcomeUnknown, after which the command may run.
        """
        command = uuid7(self._membership.now(), random.randbytes(10))
        if order.key_digest:
            command, before = await self._recall(order, command)
            if before is not None:
                return before
        if request_trace is not None:
            request_trace.begin(command, order.agent, order.method, order.traceparent)
        try:
            accepted = (
                await self._follow(command, order, request_trace)
                if follow
                else await self._place(command, order, None, request_trace)
            )
        except FairleadError as e:
            if request_trace is not None:
                request_trace.refuse(e.code, isinstance(e, AgentOffline))
            raise
        if request_trace is not None:
            request_trace.accept()
        return accepted

    async def _recall(self, order: CommandRequest, command: str) -> tuple[str, AcceptedCommand | None]:
        """The command that the Idempotency-Key of `order` is bound to, `command` from now on if there was none, and
        what has become of it; None when it is yet to be written down."""
        body, first = await self._records.remember(order.key_digest, order.body_digest, command)
        if body != order.body_digest:
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body: use a new key for a new command", id=first
            )
        if first == command:
            return command, None
        record, remembered = self._records.look_up(first), self._records.outcome(first)
        found, outcome = await record, await remembered
        if found is not None:
            return first, AcceptedCommand(first, found.targets[0].state, "", "", replayed=True)
        if outcome is not None:
            raise RecordExpired(
                f"command {first}, posted under this Idempotency-Key before, ended as {outcome.state}; its record was "
                "kept for the retention time and is gone. It was not run again: use a new key to do so",
                id=first,
                state=outcome.state.value,
            )
        return first, None  # it was refused, or the node that took it died before it had written it down

    async def _follow(self, command: str, order: CommandRequest, request_trace: RequestTrace | None) -> AcceptedCommand:
        follower = self._followers.join(command)
        try:
            accepted = await self._place(command, order, follower, request_trace)
        except BaseException:
            self._followers.leave(command, follower)
            raise
        if accepted.follower is None:
            self._followers.leave(command, follower)
        return accepted

    async def _place(
        self, command: str, order: CommandRequest, follower: Follower | None, request_trace: RequestTrace | None
    ) -> AcceptedCommand:  # fmt: skip
        membership = self._membership
        if not membership.alive:
            raise BusUnavailable("this node has no good beat: it does not know who is here")
        now = membership.now()
        hold = now + (min(order.deadline, AWAY_MS) if order.queue is None else order.queue)
        expires = now + order.deadline + (order.queue or 0)
        record = NewRecord(
            command, order.agent, order.method, order.payload, order.lane, now, expires, self._retention_ms, hold,
            order.retry, order.retain,
            self._tracing.traceparent_for(command, order.traceparent)
            if request_trace is None else request_trace.traceparent,
            0 if request_trace is None else request_trace.began,
            now + REMEMBERED_MS + BINDING_MARGIN_MS if order.key_digest else 0,
        )  # fmt: skip
        lease = membership.lease if follower is not None else ""
        created, row = await self._write(record, min(now + RING_AGAIN_MS, hold, expires), lease)
        if created is not Write.NEW:
            follower = None  # of a record that was there before our answer came the news may have come before us
        try:
            return await self._dispatched(record, order, created is not Write.OLDER, row, follower, request_trace)
        except BusUnavailable as e:
            raise self._in_doubt(command, e) from e

    async def _write(self, record: NewRecord, look: int, lease: str) -> tuple[Write, AgentRow | LimitReached | None]:
        """Write the record, the time `look` (ms) of the keeper and the agent's list; returns the agent's row.

        Raises BusUnavailable when the command was not written down and will not be, else OutcomeUnknown.
        """
        valid = self._membership.now() + POST_VALID_MS
        scheduled = self._due.schedule(record.id, record.agent, look)
        creating = self._records.create(record, valid, lease)
        dispatching = self._directory.dispatch(record.agent, record.id, record.expires, valid)
        answers = await answers_or_errors((scheduled, creating, dispatching))
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        _, created, row = answers
        if not failures:
            return Write.NEW if created else Write.OLDER, row  # type: ignore[return-value]  # of `dispatching`
        for failure in failures:
            if not isinstance(failure, BusUnavailable):
                raise failure
        if isinstance(created, BusUnavailable) and not isinstance(created, NotAnswered):
            raise created  # it was refused, or never sent, and so was what came after it
        try:
            async with asyncio.timeout(DOUBT):
                return Write.DOUBTED, await self._ascertain(record, look, valid)
        except TimeoutError:
            raise self._in_doubt(record.id, failures[0]) from failures[0]

    async def _ascertain(self, record: NewRecord, look: int, valid: int) -> AgentRow | LimitReached | None:
        """See to it that a command is dispatched which Redis may have been told of. Raises BusUnavailable when it was
        not: once its validity has passed that is final."""
        while True:
            await asyncio.sleep(max(0, valid + 1 - self._membership.now()) / 1000)
            try:
                found = await self._records.look_up(record.id)
                if found is not None:
                    again = self._membership.now() + POST_VALID_MS
                    scheduled = self._due.schedule(record.id, record.agent, look)
                    dispatching = self._directory.dispatch(record.agent, record.id, record.expires, again)
                    await scheduled
                    return await dispatching
            except BusUnavailable:
                await wait_for_redis(self._store, DOUBT)
                continue
            raise BusUnavailable(
                "Redis did not answer in time; the command was not taken in and will not run: post it again"
            )

    def _in_doubt(self, command: str, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{cause}; whether command {command} was taken in is not known: once Redis answers, "
            f"GET /v1/commands/{command} tells, and so does the same post under the same Idempotency-Key",
            id=command,
        )

    async def _dispatched(
        self, record: NewRecord, order: CommandRequest, ours: bool, row: AgentRow | LimitReached | None,
        follower: Follower | None, request_trace: RequestTrace | None,
    ) -> AcceptedCommand:  # fmt: skip
        """The command is written down: ring at its agent's node, or end it. `ours`: nobody else has posted it."""
        membership, command = self._membership, record.id
        if row is None and await self._data_lost():
            # It may be linked, and is claimed again in some seconds: the keeper dispatches the command then.
            return AcceptedCommand(
                command, TargetState.QUEUED, Presence.AWAY.value, REBUILDING, replayed=not ours, follower=follower
            )
        if not isinstance(row, AgentRow):
            error = self._refusal(order, row)
            if not ours or await self._take_back(command, order, error):
                raise error
            # Under one Idempotency-Key another call has dispatched it meanwhile.
            return AcceptedCommand(command, TargetState.QUEUED, "", "", replayed=True, follower=follower)
        presence, since, why = membership.table.presence(row, membership.now())
        if presence is Presence.ONLINE or (presence is Presence.AWAY and row.lease):
            # A lease whose node is not in our table may be of one that has just started: ringing costs nothing.
            if request_trace is not None:
                request_trace.rung, request_trace.sid = wall_ns(), row.sid
            self._inbox.ring(
                row.lease,
                (CommandQueued(order.agent, command, request_trace.rung if request_trace is not None else 0),),
            )
        elif presence is Presence.OFFLINE and order.queue is None:
            await self._fail_offline(command, order, membership.now() - since, why)
        if ours:
            self._metrics.accepted.inc()
        return AcceptedCommand(command, TargetState.QUEUED, presence.value, why, replayed=not ours, follower=follower)

    async def _data_lost(self) -> bool:
        """Whether Redis has just lost its data, and with it who is linked."""
        return await self._eras.read() != self._membership.data_epoch or self._membership.rebuilding

    async def check_data(self) -> None:
        """An agent is unknown: raise Rebuilding if that may be because Redis has just lost its data."""
        if await self._data_lost():
            raise Rebuilding(f"{REBUILDING}: try in some seconds")

    async def check_index(self) -> None:
        """Agents were listed: raise Rebuilding if linked ones may be missing because Redis has lost its data."""
        if await self._eras.read() != self._membership.data_epoch or self._membership.incomplete:
            raise Rebuilding(f"{REBUILDING}: a list would leave some out; try in some seconds")

    def _refusal(self, order: CommandRequest, row: LimitReached | None) -> FairleadError:
        """Why a command cannot be dispatched."""
        if row is None:
            return AgentUnknown(f"no agent {order.agent!r} was ever seen here", agent=order.agent)
        return Unavailable(
            f"agent {order.agent!r} has {row.count} open commands, the limit is {OPEN_LIMIT}: "
            "wait for some to end or cancel them",
            agent=order.agent,
        )

    async def _take_back(self, command: str, order: CommandRequest, error: FairleadError) -> bool:
        """End a command that could not be dispatched; False when another call under the same key has dispatched it."""
        if not order.key_digest:
            self._completion.forget(command, order.agent)
            await self._records.discard(command)  # nobody else knows of it
            return True
        how = StoredEnd(code=error.code, message=error.message, temporary=error.temporary)
        done = await self._records.finish(command, order.agent, TargetState.FAILED, how, only_from=TargetState.QUEUED)
        if done.why != "ok":
            return False
        self._completion.over(command, order.agent, TargetState.FAILED.value, done.followers, how.code)
        self._records.unbind(order.key_digest, order.body_digest, command)
        return True

    async def _fail_offline(self, command: str, order: CommandRequest, absent_ms: int, why: str) -> None:
        message = f"agent {order.agent!r} is offline for {absent_ms // 1000} s: {why}"
        how = StoredEnd(code="agent_offline", message=message, temporary=True)
        done = await self._records.finish(command, order.agent, TargetState.OFFLINE, how, only_from=TargetState.QUEUED)
        if done.why != "ok":
            return  # it came back in this very moment, and has the command
        self._completion.over(command, order.agent, TargetState.OFFLINE.value, done.followers, how.code)
        if order.key_digest:
            self._records.unbind(order.key_digest, order.body_digest, command)
        raise AgentOffline(message, agent=order.agent, id=command, why=why, absent_s=absent_ms // 1000)

    async def look_up(self, command: str) -> CommandRecord:
        found = await self._records.look_up(command)
        if found is None:
            raise self._membership.unknown(command)
        return found

    def disconnect(self, row: AgentRow) -> None:
        """Have the agent's link closed, wherever it is; the agent connects again."""
        self._inbox.ring(row.lease, (LinkSuperseded(row.agent, row.gen, CloseCode.DISCONNECTED),))

    async def cancel(self, command: str) -> TargetState:
        """Ask for the end of a command; returns its state now. A command that is over stays as it is."""
        found = await self.look_up(command)
        for target in found.targets:
            done = await self._records.cancel(command, target.agent)
            if done.why == "ended":
                self._completion.over(
                    command, target.agent, TargetState.CANCELLED.value, done.followers, origin=found.origin
                )  # fmt: skip
            elif done.why == "asked":
                self._due.schedule(command, target.agent, self._membership.now() + CANCEL_AGAIN_MS)
                row = await self._directory.look_up(target.agent)
                if row is not None and row.lease:
                    self._inbox.ring(row.lease, (CancelRequested(target.agent, command),))
        return (await self.look_up(command)).targets[0].state
