"""Writes a new command to Redis: its record, its deadline and its place among its agent's open commands, in one step;
and makes the doorbell that announces it.

The step offers a small command to the link that the agent's row names: it is marked as sent, and the doorbell brings
all of it (see decision 0060). Only who made that step knows so, and rings once. Called by `dispatch`. If Redis does not
answer, the writer finds out whether the command was written, since its caller must not be told that a command is
refused that runs later.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead.bus.doorbell import CommandOffered, CommandQueued, Doorbell
from fairlead.errors import BusUnavailable, NotAnswered, OutcomeUnknown
from fairlead.fleet.command_record import Acceptance, NewRecord
from fairlead.fleet.commands import BULK
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import OFFER_VALID_MS, POST_DOUBT, POST_VALID_MS, wait_for_redis

MOST_BYTES: Final = 4096
"""Of a payload and its signature that a doorbell carries. More is read from Redis, where it costs little beside its own
size."""
UNANSWERED = "unanswered"
"""The `why` of an Acceptance without an answer: the record is there, and this call has probably written it."""


class RecordWriter:
    def __init__(self, fleet: FleetStore, membership: Membership) -> None:
        self._store = fleet.store
        self._directory = fleet.directory
        self._records = fleet.records
        self._membership = membership

    async def write(self, record: NewRecord, due_at: int, lease: str, unknown: bool = False) -> Acceptance:
        """Write `record`, which the sweeper checks at the time `due_at` (ms). If `lease` is not empty, it is the first
        follower. With `unknown` the agent needs no row.

        Raises BusUnavailable if the record is not written and will not be, and OutcomeUnknown if that cannot be found
        out.
        """
        valid = self._membership.now() + POST_VALID_MS
        try:
            return await self._records.accept(record, due_at, valid, lease, unknown, offer=fits_doorbell(record))
        except NotAnswered as e:
            try:
                async with asyncio.timeout(POST_DOUBT):
                    return await self._ascertain(record, valid)
            except TimeoutError:
                raise outcome_unknown(record.id, e) from e

    async def _ascertain(self, record: NewRecord, valid: int) -> Acceptance:
        """Find a command that Redis may have written. Raises BusUnavailable if it has not: after the time `valid` that
        is final."""
        while True:
            await asyncio.sleep(max(0, valid + 1 - self._membership.now()) / 1000)
            try:
                found, row = self._records.look_up(record.id), self._directory.look_up(record.agent)
                if await found is not None:
                    return Acceptance(UNANSWERED, await row)
            except BusUnavailable:
                await wait_for_redis(self._store, POST_DOUBT)
                continue
            raise BusUnavailable(
                "Redis did not answer in time; the command was not accepted and will not run (post it again)"
            )


def fits_doorbell(record: NewRecord) -> bool:
    """Whether a doorbell can carry all of a command."""
    return len(record.payload) + len(record.signature) <= MOST_BYTES


def doorbell_of(record: NewRecord, accepted: Acceptance, rung_at: int) -> Doorbell:
    """What tells the agent's node of a command that was just accepted. `rung_at` is for traces (ns, 0 if not known)."""
    if not accepted.offered or accepted.row is None:
        return CommandQueued(record.agent, record.id, rung_at, record.lane == BULK)
    return CommandOffered(
        record.agent, record.id, accepted.row.gen, record.created + OFFER_VALID_MS, record.expires, record.method,
        record.payload, record.lane, record.retry, record.created,  # type: ignore[arg-type]
        rung_at, record.traceparent, record.began, record.signature, record.content,
    )  # fmt: skip  # lane and retry were checked when the command was posted


def outcome_unknown(command: str, cause: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{cause}; whether command {command} was accepted is not known: once Redis answers, "
        f"GET /v1/commands/{command} shows it, and so does the same post under the same Idempotency-Key",
        id=command,
    )
