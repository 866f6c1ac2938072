"""Writes a new command to Redis: its record, its deadline and its place among its agent's open commands.

Called by `dispatch`. The three go out in one batch, in this order: if the node dies between any two of them, the
sweeper finds what is there. If Redis does not answer, the writer finds out whether the command was written, since its
caller must not be told that a command is refused that runs later.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from fairlead.errors import BusUnavailable, NotAnswered, OutcomeUnknown
from fairlead.fleet.command_record import NewRecord
from fairlead.fleet.directory_replies import LimitReached
from fairlead.fleet.schema import AgentRow
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import POST_DOUBT, POST_VALID_MS, wait_for_redis
from fairlead.store.answer import answers_or_errors


class Written(Enum):
    """How a record came to be in Redis."""

    NEW = auto()
    BEFORE = auto()
    """An earlier call has written it."""
    UNANSWERED = auto()
    """It is there, and this call has probably written it: the answer did not arrive."""


class RecordWriter:
    def __init__(self, fleet: FleetStore, membership: Membership) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._records = fleet.records
        self._deadlines = fleet.deadlines
        self._membership = membership

    async def write(self, record: NewRecord, due_at: int, lease: str) -> tuple[Written, AgentRow | LimitReached | None]:
        """Write `record`, which the sweeper checks at the time `due_at` (ms). If `lease` is not empty, it is the first
        follower. Returns how the record was written, and the agent's row (None if it has no row).

        Raises BusUnavailable if the record is not written and will not be, and OutcomeUnknown if that cannot be found
        out.
        """
        valid = self._membership.now() + POST_VALID_MS
        scheduled = self._deadlines.schedule(record.id, record.agent, due_at)
        creating = self._records.create(record, valid, lease)
        dispatching = self._directory.dispatch(record.agent, record.id, record.expires, valid)
        answers = await answers_or_errors((scheduled, creating, dispatching))
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        _, created, row = answers
        if not failures:
            return Written.NEW if created else Written.BEFORE, row  # type: ignore[return-value]  # of `dispatching`
        for failure in failures:
            if not isinstance(failure, BusUnavailable):
                raise failure
        if isinstance(created, BusUnavailable) and not isinstance(created, NotAnswered):
            raise created  # it was refused or never sent, and so was what followed it
        try:
            async with asyncio.timeout(POST_DOUBT):
                return Written.UNANSWERED, await self._ascertain(record, due_at, valid)
        except TimeoutError:
            raise outcome_unknown(record.id, failures[0]) from failures[0]

    async def _ascertain(self, record: NewRecord, due_at: int, valid: int) -> AgentRow | LimitReached | None:
        """Dispatch a command that Redis may have written. Raises BusUnavailable if it has not: after the time `valid`
        that is final."""
        while True:
            await asyncio.sleep(max(0, valid + 1 - self._membership.now()) / 1000)
            try:
                found = await self._records.look_up(record.id)
                if found is not None:
                    again = self._membership.now() + POST_VALID_MS
                    scheduled = self._deadlines.schedule(record.id, record.agent, due_at)
                    dispatching = self._directory.dispatch(record.agent, record.id, record.expires, again)
                    await scheduled
                    return await dispatching
            except BusUnavailable:
                await wait_for_redis(self._store, POST_DOUBT)
                continue
            raise BusUnavailable(
                "Redis did not answer in time; the command was not accepted and will not run (post it again)"
            )


def outcome_unknown(command: str, cause: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{cause}; whether command {command} was accepted is not known: once Redis answers, "
        f"GET /v1/commands/{command} shows it, and so does the same post under the same Idempotency-Key",
        id=command,
    )
