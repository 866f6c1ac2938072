"""The commands of a run's targets: starts them in batches, and reads how they ended.

The driver of a run calls it. Each is an ordinary command, whose id follows from the run and the agent: whoever starts
it again, starts the same one. So a new owner may start again whatever the old one may not have, and nothing runs twice.
A command that cannot run is ended here as any other is, and the driver hears of it in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.bus.doorbell import CommandQueued, Doorbell
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import Acceptance, CommandRecord, NewRecord, OutOfRange, ResultPage, StoredEnd
from fairlead.fleet.commands import BULK
from fairlead.fleet.node_table import AWAY_MS, Presence
from fairlead.fleet.runs.run_record import OwnedRun, RunTerms
from fairlead.fleet.schema import AgentRow, TargetState, cmd_key
from fairlead.routing.commands.completion import ENDS_ONLY, Completion
from fairlead.routing.commands.output_digest import OutputDigest, exit_code
from fairlead.routing.commands.record_writer import doorbell_of, fits_doorbell
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.data_check import DataCheck
from fairlead.routing.membership.membership import Membership
from fairlead.routing.retention.retention import Retention
from fairlead.routing.runs.run_signatures import RunSignatures
from fairlead.routing.timeouts import RING_AGAIN_MS
from fairlead.shards import of_agent
from fairlead.signing.run_signature import target_id
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.store.errors import StoreError
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing
from fairlead.tenant import local_id
from fairlead.wire.ids import uuid7

AT_ONCE: Final = 32
"""Commands that are started in one turn of the event loop."""
FAILED: Final = Acceptance("failed")
PAGE_BYTES: Final = 64 << 10
COMPARED_BYTES: Final = 1 << 20
"""Output above it is not compared with that of others: reading it would cost more than the run."""


@dataclass(frozen=True, slots=True)
class TargetEnd:
    """How the command of a target ended. `digest` is the digest of all its output, or "" if it wrote none, more than is
    compared, or more than was kept."""

    state: TargetState
    code: str
    digest: str
    exit: str
    """How its program exited, if it was one that did not end with 0 (`exit_code`)."""


@dataclass(slots=True)
class StartedCommands:
    """What became of commands that were to start, but for those that have started."""

    in_doubt: set[str] = field(default_factory=set)
    """It is not known whether they were started: their record will tell once the start is not valid any more."""
    refused: dict[str, str] = field(default_factory=dict)
    """With the code of the error: they have no record."""
    queued: set[str] = field(default_factory=set)
    """They wait for their agents."""


def command_of(run: str, terms: RunTerms, agent: str) -> str:
    """The id of the command by which a run reaches an agent."""
    if terms.signature:
        return target_id(run, local_id(agent))
    return of_agent(uuid7(terms.created, hashlib.sha256(f"{run} {agent}".encode()).digest()[:10]), agent)


class TargetCommands:
    def __init__(
        self, fleet: FleetStore, inbox: Inbox, completion: Completion, membership: Membership, metrics: Metrics,
        tracing: Tracing, retention: Retention,
    ) -> None:  # fmt: skip
        self._records = fleet.records
        self._batches = fleet.batches
        self._gate = fleet.gate
        self._data = DataCheck(fleet.data_epochs, membership)
        self._inbox = inbox
        self._completion = completion
        self._membership = membership
        self._metrics = metrics
        self._tracing = tracing
        self._retention = retention
        self.retention_ms = retention.default_ms

    async def start(
        self, run: OwnedRun, signatures: RunSignatures | None, targets: Sequence[tuple[str, str]], valid: int
    ) -> StartedCommands:
        """Start the command of each (command, agent), with its signature if the run has any; after the time `valid`
        none begins any more."""
        started = StartedCommands()
        for at in range(0, len(targets), AT_ONCE):
            now = self._membership.now()
            records = [self._record(run, signatures, now, *target) for target in targets[at : at + AT_ONCE]]
            due_at, offer = self._due_at(records[0]), _offered(run, records)
            follower = ENDS_ONLY + self._membership.lease
            rung = dict[str, list[Doorbell]]()
            calls = list(self._batches.accept(records, due_at, valid, follower, offer=offer))
            # All answers first: they note what is said again after a failover, and an announcement may take a while.
            answered = [(part, await self._answers(run, part, answer, valid)) for part, answer in calls]
            for part, answers in answered:
                table, now = self._membership.table, self._membership.now()
                for record, accepted in zip(part, answers, strict=True):
                    if isinstance(accepted, BusUnavailable | StoreError):
                        started.in_doubt.add(record.id)
                    elif isinstance(accepted, Exception):
                        raise accepted
                    elif accepted.why == "full":
                        started.refused[record.id] = "unavailable"
                    elif accepted.row is not None:
                        self._metrics.accepted.inc(accepted.why == "ok")
                        row = accepted.row
                        if table.holds(row.lease, now):
                            rung.setdefault(row.lease, []).append(doorbell_of(record, accepted, 0))
                        elif lease := await self._announce_away(run, record, accepted, row, started):
                            queued = CommandQueued(record.agent, record.id, bulk=record.lane == BULK)
                            rung.setdefault(lease, []).append(queued)
                    elif accepted.why == "unknown":
                        await self._unknown(run, record, valid, started)
            for lease, doorbells in rung.items():
                self._inbox.ring(lease, doorbells)
        return started

    async def _answers(
        self, run: OwnedRun, records: Sequence[NewRecord], answer: Answer[list[Acceptance]], valid: int
    ) -> Sequence[Acceptance | Exception]:
        """What became of each of the commands of one call."""
        accepted: Sequence[Acceptance | Exception]
        try:
            accepted = await answer
        except BusUnavailable as e:
            return [e] * len(records)
        except StoreError:  # of a key that they share
            accepted = [FAILED] * len(records)
        again = [record for record, one in zip(records, accepted, strict=True) if one == FAILED]
        alone = iter(await answers_or_errors([self._accept(run, record, valid) for record in again]))
        return [next(alone) if one == FAILED else one for one in accepted]

    async def _announce_away(
        self, run: OwnedRun, record: NewRecord, accepted: Acceptance, row: AgentRow, started: StartedCommands
    ) -> str:
        """For a command whose agent is linked to no live node: the lease of the node that is to be told that it waits,
        or "" for none."""
        presence, since, why = self._membership.table.presence(row, now := self._membership.now())
        if accepted.offered and not await self._end_offer(record, row):
            return ""
        if run.terms.queue:
            started.queued.add(record.id)
        elif presence is Presence.OFFLINE:
            await self._end_offline(record, now - since, why)
            return ""
        return row.lease  # its node may have joined again, which this one has not read yet

    async def _end_offer(self, record: NewRecord, row: AgentRow) -> bool:
        """Have a command queued again, because nobody but this node could tell the agent's node of its offer, and that
        node seems to be gone. Returns False if that failed: the command sweeper then ends the offer."""
        try:
            await self._records.end_offer(record.id, record.agent, row.gen, written=False)
        except BusUnavailable:
            return False
        return True

    def _record(self, run: OwnedRun, signatures: RunSignatures | None, now: int, command: str, agent: str) -> NewRecord:
        terms = run.terms
        expires = min(now + terms.deadline + terms.queue, terms.expires)
        hold = min(now + (terms.queue or AWAY_MS), expires)
        # The results of the first target are kept as long as those of the last. A record is kept for `retention` from
        # its end on, which may come at once.
        retention = self.retention_ms + max(0, terms.expires - now)
        return NewRecord(
            command, agent, terms.method, run.payload, terms.lane, now, expires, retention, hold, terms.retry,
            traceparent=self._tracing.traceparent_for(command, terms.traceparent), subject=terms.subject,
            signature=b"" if signatures is None else signatures.of(agent), content=terms.content,
            results_limit=self._retention.results_limit(terms.method),
        )  # fmt: skip

    def _accept(self, run: OwnedRun, record: NewRecord, valid: int, *, unknown: bool = False) -> Answer[Acceptance]:
        # That of an agent without a row is for nobody yet.
        offer = not unknown and _offered(run, [record])
        follower = ENDS_ONLY + self._membership.lease
        return self._records.accept(record, self._due_at(record), valid, follower, unknown, offer)

    @staticmethod
    def _due_at(record: NewRecord) -> int:
        """When the command sweeper looks at the command first."""
        return min(record.created + RING_AGAIN_MS, record.hold_until)

    async def _unknown(self, run: OwnedRun, record: NewRecord, valid: int, started: StartedCommands) -> None:
        """Accept the command of an agent that has no row, if that is because Redis has just lost its data. The command
        sweeper dispatches it then."""
        try:
            if not await self._data.data_lost():
                started.refused[record.id] = "agent_unknown"
            elif (await self._accept(run, record, valid, unknown=True)).why == "full":
                started.refused[record.id] = "unavailable"
        except BusUnavailable:
            started.in_doubt.add(record.id)

    async def _end_offline(self, record: NewRecord, absent_ms: int, why: str) -> None:
        """End the command of an agent that is offline. The command sweeper repeats what fails here."""
        message = f"agent {local_id(record.agent)!r} has been offline for {absent_ms // 1000} s: {why}"
        how = StoredEnd(code="agent_offline", message=message, temporary=True)
        state = TargetState.OFFLINE
        try:
            done = await self._records.finish(record.id, record.agent, state, how, only_from=TargetState.QUEUED)
        except BusUnavailable:
            return
        if done.why == "ok":
            self._completion.completed(record.id, record.agent, state.value, done.followers, how.code)

    async def read_ends(self, commands: Sequence[str]) -> list[TargetEnd | bool | None]:
        """How each of `commands` has ended. False for one that is still open, which this node follows from now on, True
        for one that could not be read, and None for one that has no record."""
        if self._gate.closed and any(self._gate.closed_for(cmd_key(command)) for command in commands):
            return [True] * len(commands)  # what was lost may not be back yet
        follower = ENDS_ONLY + self._membership.lease
        asked = [self._records.read(command, 0, PAGE_BYTES, follower) for command in commands]
        ends: list[TargetEnd | bool | None] = []
        for command, page in zip(commands, await answers_or_errors(asked), strict=True):
            if isinstance(page, BusUnavailable):
                ends.append(True)
            elif isinstance(page, Exception):
                raise page
            else:
                ends.append(await self._end_of(command, page))
        return ends

    async def _end_of(self, command: str, page: ResultPage | OutOfRange | None) -> TargetEnd | bool | None:
        compared = OutputDigest()
        try:
            while isinstance(page, ResultPage) and page.ended is None and page.results:
                _add(compared, page)
                offset = page.results[-1].offset + 1
                if offset >= page.seq:
                    return False
                if compared.size > COMPARED_BYTES:
                    record = await self._records.look_up(command)
                    return None if record is None else _ended(record, "")
                page = await self._records.read(command, offset, PAGE_BYTES)
            if isinstance(page, OutOfRange) and page.dropped_at:
                record = await self._records.look_up(command)
                return None if record is None else _ended(record, "")
        except BusUnavailable:
            return True
        if page is None:
            return None
        if isinstance(page, OutOfRange) or page.ended is None:
            return False
        _add(compared, page)
        whole = not page.ended.truncated and compared.size <= COMPARED_BYTES
        return _ended(page.ended, compared.digest(page.ended.targets[0].ending) if whole else "")


def _offered(run: OwnedRun, records: Sequence[NewRecord]) -> bool:
    """Whether commands are offered to the links of their agents. That of an agent that may be waited for is queued from
    the start: an offer to a node that has just died would leave it in doubt whether it ran."""
    return not run.terms.queue and all(map(fits_doorbell, records))


def _add(compared: OutputDigest, page: ResultPage) -> None:
    for result in page.results:
        compared.add(result.kind, result.payload)


def _ended(record: CommandRecord, digest: str) -> TargetEnd | bool:
    target = record.targets[0]
    if not target.state.over:
        return False
    ending = target.ending
    if ending is None:
        return TargetEnd(target.state, "", digest, "")
    return TargetEnd(target.state, ending.code, digest, exit_code(ending.payload))
