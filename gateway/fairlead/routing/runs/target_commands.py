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
from fairlead.fleet.node_table import AWAY_MS, Presence
from fairlead.fleet.runs.run_record import OwnedRun, RunTerms
from fairlead.fleet.schema import AgentRow, TargetState, cmd_key
from fairlead.routing.commands.completion import ENDS_ONLY, Completion
from fairlead.routing.commands.output_digest import OutputDigest, exit_code
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.data_check import DataCheck
from fairlead.routing.membership.membership import Membership
from fairlead.routing.retention.retention import Retention
from fairlead.routing.runs.run_signatures import RunSignatures
from fairlead.routing.timeouts import RING_AGAIN_MS
from fairlead.shards import of_agent
from fairlead.signing.run_signature import target_id
from fairlead.store.answer import Answer, answers_or_errors
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing
from fairlead.tenant import local_id
from fairlead.wire.ids import uuid7

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
        answers = [self._accept(run, signatures, command, agent, valid) for command, agent in targets]
        started, rung = StartedCommands(), dict[str, list[Doorbell]]()
        for (command, agent), accepted in zip(targets, await answers_or_errors(answers), strict=True):
            if isinstance(accepted, BusUnavailable):
                started.in_doubt.add(command)
            elif isinstance(accepted, Exception):
                raise accepted
            elif accepted.why == "full":
                started.refused[command] = "unavailable"
            elif accepted.row is not None:
                self._metrics.accepted.inc(accepted.why == "ok")
                if run.terms.queue and not self._linked(accepted.row):
                    started.queued.add(command)
                    lease = accepted.row.lease  # its node may have joined again, which this one has not read yet
                else:
                    lease = await self._lease_to_ring(command, agent, accepted.row)
                if lease:
                    rung.setdefault(lease, []).append(CommandQueued(agent, command))
            elif accepted.why == "unknown":
                try:
                    code = await self._accept_unknown(run, signatures, command, agent, valid)
                except BusUnavailable:
                    started.in_doubt.add(command)
                else:
                    started.refused |= {command: code} if code else {}
        for lease, doorbells in rung.items():
            self._inbox.ring(lease, doorbells)
        return started

    def _linked(self, row: AgentRow) -> bool:
        return self._membership.table.presence(row, self._membership.now())[0] is Presence.ONLINE

    def _accept(
        self, run: OwnedRun, signatures: RunSignatures | None, command: str, agent: str, valid: int,
        unknown: bool = False,
    ) -> Answer[Acceptance]:  # fmt: skip
        terms, now = run.terms, self._membership.now()
        expires = min(now + terms.deadline + terms.queue, terms.expires)
        hold = min(now + (terms.queue or AWAY_MS), expires)
        # The results of the first target are kept as long as those of the last. A record is kept for `retention` from
        # its end on, which may come at once.
        retention = self.retention_ms + max(0, terms.expires - now)
        record = NewRecord(
            command, agent, terms.method, run.payload, terms.lane, now, expires, retention, hold, terms.retry,
            traceparent=self._tracing.traceparent_for(command, terms.traceparent), subject=terms.subject,
            signature=b"" if signatures is None else signatures.of(agent), content=terms.content,
            results_limit=self._retention.results_limit(terms.method),
        )  # fmt: skip
        follower = ENDS_ONLY + self._membership.lease
        return self._records.accept(record, min(now + RING_AGAIN_MS, hold), valid, follower, unknown)

    async def _accept_unknown(
        self, run: OwnedRun, signatures: RunSignatures | None, command: str, agent: str, valid: int
    ) -> str:
        """Accept the command of an agent that has no row because Redis has just lost its data. The command sweeper
        dispatches it then. Returns the code with which it is refused, "" if it is not. Raises BusUnavailable."""
        if not await self._data.data_lost():
            return "agent_unknown"
        accepted = await self._accept(run, signatures, command, agent, valid, unknown=True)
        return "unavailable" if accepted.why == "full" else ""

    async def _lease_to_ring(self, command: str, agent: str, row: AgentRow) -> str:
        """The lease of the node that has the agent, or "" if no node has it. The command of an agent that is offline is
        ended. The command sweeper repeats what fails here."""
        presence, since, why = self._membership.table.presence(row, now := self._membership.now())
        if presence is not Presence.OFFLINE:
            return row.lease
        message = f"agent {local_id(agent)!r} is offline for {(now - since) // 1000} s: {why}"
        try:
            how = StoredEnd(code="agent_offline", message=message, temporary=True)
            await self._finish(command, agent, TargetState.OFFLINE, how)
        except BusUnavailable:
            pass
        return ""

    async def _finish(self, command: str, agent: str, state: TargetState, how: StoredEnd) -> None:
        """End a command that no agent has."""
        done = await self._records.finish(command, agent, state, how, only_from=TargetState.QUEUED)
        if done.why == "ok":
            self._completion.completed(command, agent, state.value, done.followers, how.code)

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
