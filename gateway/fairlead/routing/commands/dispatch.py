"""Accepts a command: stores its record, finds its agent's node and rings it. Cancels commands.

Called by the API. An absent agent is unknown (never seen here), offline (the command fails at once, unless it may
queue) or away (it was linked a moment ago, and the command waits for it).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec

from fairlead.bus.doorbell import CancelRequested
from fairlead.bus.inbox import Inbox
from fairlead.errors import (
    AgentOffline,
    AgentUnknown,
    BusUnavailable,
    FairleadError,
    IdempotencyConflict,
    OutcomeUnknown,
    QuotaExceeded,
    RecordExpired,
    Unavailable,
)
from fairlead.fleet.command_record import Acceptance, CommandOutcome, CommandRecord, NewRecord, StoredEnd
from fairlead.fleet.node_table import AWAY_MS, Presence
from fairlead.fleet.schema import OPEN_LIMIT, REMEMBERED_MS, TargetState, agent_key, idem_key
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.record_writer import RecordWriter, doorbell_of, outcome_unknown
from fairlead.routing.commands.request import CommandRequest, DispatchedCommand
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.membership.data_check import REBUILDING, DataCheck
from fairlead.routing.membership.membership import Membership
from fairlead.routing.retention.retention import Retention
from fairlead.routing.timeouts import CANCEL_AGAIN_MS, RING_AGAIN_MS
from fairlead.shards import of_agent
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.request_trace import RequestTrace
from fairlead.telemetry.tracing import Tracing, wall_ns
from fairlead.tenant import local_id
from fairlead.wire.ids import uuid7

BINDING_MARGIN_MS = 60_000
"""How much longer than an Idempotency-Key its command is remembered: a call that reads the binding just before it
expires may use it afterwards."""


class Dispatcher:
    def __init__(
        self,
        fleet: FleetStore,
        inbox: Inbox,
        completion: Completion,
        followers: Followers,
        membership: Membership,
        metrics: Metrics,
        tracing: Tracing,
        retention: Retention,
    ) -> None:
        """`retention` is how long the results of a command are kept after its end."""
        self._directory = fleet.directory
        self._records = fleet.records
        self._memory = fleet.memory
        self._tenants = fleet.tenants
        self._gate = fleet.gate
        self._deadlines = fleet.deadlines
        self._writer = RecordWriter(fleet, membership)
        self._data = DataCheck(fleet.data_epochs, membership)
        self._inbox = inbox
        self._completion = completion
        self._followers = followers
        self._membership = membership
        self._metrics = metrics
        self._tracing = tracing
        self.retention = retention

    async def submit(
        self,
        request: CommandRequest,
        follow: bool = False,
        request_trace: RequestTrace | None = None,
        permit: Callable[[str], Awaitable[None]] | None = None,
    ) -> DispatchedCommand:
        """Accept the command. With `follow`, this node follows it from the start. `request_trace` records the trace of
        the request. `permit` is awaited with the command's id before anything of the command is written, and may raise.

        Raises AgentUnknown, AgentOffline, IdempotencyConflict, RecordExpired, QuotaExceeded, Unavailable, StoreFull
        and BusUnavailable, after all of which nothing runs, and OutcomeUnknown, after which the command may run.
        """
        command, before = request.id, None
        if request.id or request.key_digest:
            # It may repeat what is not back yet.
            await self._gate.wait_settled_for(agent_key(request.agent))
        if request.id:
            before = await self._posted_before(request)
        else:
            command = of_agent(uuid7(self._membership.now(), random.randbytes(10)), request.agent)
            if request.key_digest:
                command, before = await self._recall(request, command)
        if permit is not None:
            await permit(command)
        if before is not None:
            return before
        self._memory.check_command(len(request.payload), request.agent)
        if request_trace is not None:
            request_trace.begin(command, request.agent, request.method, request.traceparent)
        try:
            if follow:
                dispatched = await self._place_and_follow(command, request, request_trace)
            else:
                dispatched = await self._place(command, request, None, request_trace)
        except FairleadError as e:
            if not isinstance(e, OutcomeUnknown | QuotaExceeded):
                self._tenants.command_ended(command, request.agent)
            if request_trace is not None:
                request_trace.refuse(e.code, isinstance(e, AgentOffline))
            raise
        if request_trace is not None:
            request_trace.accept()
        return dispatched

    async def _recall(self, request: CommandRequest, command: str) -> tuple[str, DispatchedCommand | None]:
        """The command that the Idempotency-Key of `request` is bound to, which is `command` if there was none, and what
        has become of it, or None if its record has yet to be written."""
        key = idem_key(request.key_digest, request.agent)
        body, first = await self._records.remember(key, request.body_digest, command)
        if body != request.body_digest:
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body: use a new key for a new command", id=first
            )
        if first == command:
            return command, None
        record, remembered = self._records.look_up(first), self._records.outcome(first)
        found, outcome = await record, await remembered
        if found is not None:
            return first, DispatchedCommand(first, found.targets[0].state, "", "", replayed=True)
        if outcome is not None:
            raise _record_expired(first, outcome, "under this Idempotency-Key", "use a new key to do so")
        return first, None  # it was refused, or its node died before it wrote the record

    async def _posted_before(self, request: CommandRequest) -> DispatchedCommand | None:
        """What has become of the signed command `request` if it was posted before, otherwise None. Its id is its
        key."""
        record, remembered = self._records.look_up(request.id), self._records.outcome(request.id)
        found, outcome = await record, await remembered
        if found is not None:
            # The gateway cannot verify the signature, so an equal one proves neither the agent nor the method.
            if (found.signature, found.subject, found.agent, found.method) != (
                request.signature, request.subject, request.agent, request.method,
            ):  # fmt: skip
                raise IdempotencyConflict(
                    f"command {request.id} was posted with another signature, agent or method: sign a new command "
                    "under a new id",
                    id=request.id,
                )
            return DispatchedCommand(request.id, found.targets[0].state, "", "", replayed=True)
        if outcome is not None:
            raise _record_expired(request.id, outcome, "with this signature", "sign a new command to do so")
        return None

    async def _place_and_follow(
        self, command: str, request: CommandRequest, request_trace: RequestTrace | None
    ) -> DispatchedCommand:
        follower = self._followers.join(command)
        try:
            dispatched = await self._place(command, request, follower, request_trace)
        except BaseException:
            self._followers.leave(command, follower)
            raise
        if dispatched.follower is None:
            self._followers.leave(command, follower)
        return dispatched

    async def _place(
        self, command: str, request: CommandRequest, follower: Follower | None, request_trace: RequestTrace | None
    ) -> DispatchedCommand:
        """Write the command's record and ring its agent's node."""
        membership = self._membership
        membership.check_alive("it does not know which agents are linked")
        now = membership.now()
        await self._tenants.admit_command(command, request.agent, now + request.deadline + (request.queue or 0))
        hold = now + (min(request.deadline, AWAY_MS) if request.queue is None else request.queue)
        expires = now + request.deadline + (request.queue or 0)
        if request_trace is None:
            traceparent, began = self._tracing.traceparent_for(command, request.traceparent), 0
        else:
            traceparent, began = request_trace.traceparent, request_trace.began
        bound_until = now + REMEMBERED_MS + BINDING_MARGIN_MS if request.key_digest or request.id else 0
        record = NewRecord(
            command, request.agent, request.method, request.payload, request.lane, now, expires,
            self.retention.of(request.method), hold, request.retry, request.retain, traceparent, began,
            bound_until, request.subject, request.signature, request.content,
            self.retention.results_limit(request.method),
        )  # fmt: skip
        lease = membership.lease if follower is not None else ""
        due_at = min(now + RING_AGAIN_MS, hold, expires)
        accepted = await self._writer.write(record, due_at, lease)
        if accepted.why == "unknown" and await self._data.data_lost():
            accepted = await self._writer.write(record, due_at, lease, unknown=True)
        if accepted.why == "exists" and request.id and (before := await self._posted_before(request)) is not None:
            return before  # at the same moment, by another call
        if accepted.why != "ok":
            follower = None  # the record was there before our answer arrived, and so may have been its first doorbell
        try:
            return await self._dispatch(record, request, accepted, follower, request_trace)
        except BusUnavailable as e:
            raise outcome_unknown(command, e) from e

    async def _dispatch(
        self, record: NewRecord, request: CommandRequest, accepted: Acceptance, follower: Follower | None,
        request_trace: RequestTrace | None,
    ) -> DispatchedCommand:  # fmt: skip
        """Ring the agent's node for a command whose record is written, or end the command."""
        membership, command, row = self._membership, record.id, accepted.row
        created = accepted.why != "exists"
        if accepted.why == "full" or (row is None and not await self._data.data_lost()):
            # An Idempotency-Key stays bound: a repeated post under it tries again with the same id.
            raise _refusal(request, accepted)
        if row is None:
            # The agent may be linked, and is claimed again in some seconds: the sweeper dispatches the command then.
            return DispatchedCommand(
                command, TargetState.QUEUED, Presence.AWAY.value, REBUILDING, replayed=not created, follower=follower
            )
        presence, since, why = membership.table.presence(row, membership.now())
        if accepted.offered and presence is not Presence.ONLINE:
            # Its node seems to be gone, and nobody but this node could tell it: so the command waits, or fails.
            await self._records.end_offer(command, request.agent, row.gen, written=False)
            accepted = msgspec.structs.replace(accepted, offered=False)
        if presence is Presence.ONLINE or (presence is Presence.AWAY and row.lease):
            # A lease that is not in our table may belong to a node that has just joined: a doorbell costs nothing.
            if request_trace is not None:
                request_trace.rung, request_trace.sid = wall_ns(), row.sid
            rung_at = request_trace.rung if request_trace is not None else 0
            self._inbox.ring(row.lease, (doorbell_of(record, accepted, rung_at),))
        elif presence is Presence.OFFLINE and request.queue is None:
            await self._fail_offline(command, request, membership.now() - since, why)
        if created:
            self._metrics.accepted.inc()
        return DispatchedCommand(
            command, TargetState.QUEUED, presence.value, why, replayed=not created, follower=follower
        )

    async def _fail_offline(self, command: str, request: CommandRequest, absent_ms: int, why: str) -> None:
        message = f"agent {local_id(request.agent)!r} has been offline for {absent_ms // 1000} s: {why}"
        how = StoredEnd(code="agent_offline", message=message, temporary=True)
        done = await self._records.finish(
            command, request.agent, TargetState.OFFLINE, how, only_from=TargetState.QUEUED
        )
        if done.why != "ok":
            return  # the agent came back at this moment, and has the command
        self._completion.completed(command, request.agent, TargetState.OFFLINE.value, done.followers, how.code)
        if request.key_digest:
            self._records.unbind(idem_key(request.key_digest, request.agent), request.body_digest, command)
        raise AgentOffline(message, agent=local_id(request.agent), id=command, why=why, absent_s=absent_ms // 1000)

    async def look_up(self, command: str) -> CommandRecord:
        """The record of a command. Raises CommandUnknown if there is none."""
        await self._gate.wait_settled(command)
        found = await self._records.look_up(command)
        if found is None:
            raise self._membership.unknown_command(command)
        return found

    async def cancel(self, command: str) -> TargetState:
        """Request the end of a command. Returns its state now. A command that is over stays as it is."""
        found = await self.look_up(command)
        for target in found.targets:
            done = await self._records.cancel(command, target.agent)
            if done.why == "ended":
                self._completion.completed(
                    command, target.agent, TargetState.CANCELLED.value, done.followers, origin=found.origin
                )
            elif done.why == "asked":
                self._deadlines.schedule(command, target.agent, self._membership.now() + CANCEL_AGAIN_MS)
                row = await self._directory.look_up(target.agent)
                if row is not None and row.lease:
                    self._inbox.ring(row.lease, (CancelRequested(target.agent, command),))
        return (await self.look_up(command)).targets[0].state


def _record_expired(command: str, outcome: CommandOutcome, posted: str, advice: str) -> RecordExpired:
    return RecordExpired(
        f"command {command}, posted {posted} before, ended as {outcome.state}; its record was kept for the retention "
        f"time and is gone. It was not run again: {advice}",
        id=command,
        state=outcome.state.value,
    )


def _refusal(request: CommandRequest, accepted: Acceptance) -> FairleadError:
    """Why a command was not accepted."""
    name = local_id(request.agent)
    if accepted.why != "full":
        return AgentUnknown(f"unknown agent {name!r}: no agent with this id has ever connected", agent=name)
    return Unavailable(
        f"agent {name!r} has {accepted.opened} open commands, the limit is {OPEN_LIMIT}: "
        "wait for some to end or cancel them",
        agent=name,
    )
