"""What callers ask of runs: begin one, look at one, pause, resume and cancel it.

Called by the API, on any node. What is asked is left in Redis for the run's owner, which is rung; without the doorbell
it finds the wish with its next step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from fairlead.bus.doorbell import ResultsAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, IdempotencyConflict, NotAnswered, OutcomeUnknown
from fairlead.fleet.commands import Commands
from fairlead.fleet.runs.run_record import OwnedRun, RunGroup, RunRow, RunTerms
from fairlead.fleet.runs.runs import AGENTS_A_BLOB, Runs
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.run_driver import wish_topic
from fairlead.routing.runs.run_keeper import RunKeeper
from fairlead.routing.runs.run_plan import RunPlan
from fairlead.routing.runs.run_results import unknown_run
from fairlead.routing.runs.target_commands import command_of
from fairlead.routing.store_memory import StoreMemory
from fairlead.routing.timeouts import POST_VALID_MS
from fairlead.wire.ids import uuid7


class NamedGroup(msgspec.Struct, frozen=True):
    """A group of targets with the agents and commands of the first few."""

    group: RunGroup
    agents: list[str]
    commands: list[str]


class RunService:
    def __init__(
        self, runs: Runs, records: Commands, keeper: RunKeeper, inbox: Inbox, membership: Membership,
        memory: StoreMemory, retention_ms: int,
    ) -> None:  # fmt: skip
        self._runs = runs
        self._records = records
        self._keeper = keeper
        self._inbox = inbox
        self._membership = membership
        self._memory = memory
        self._retention_ms = retention_ms

    @property
    def now(self) -> int:
        """Redis TIME in ms."""
        return self._membership.now()

    async def submit(
        self, terms: RunTerms, payload: bytes, agents: Sequence[str], key_digest: str = "", body_digest: str = ""
    ) -> tuple[str, bool]:
        """Begin a run here. Returns its id, and whether it was posted before under the same Idempotency-Key.

        Raises IdempotencyConflict, Unavailable, StoreFull and BusUnavailable, after all of which nothing runs, and
        OutcomeUnknown, after which some node may drive the run.
        """
        self._keeper.check_room()
        self._memory.check_command(len(payload))
        if not self._membership.alive:
            raise BusUnavailable(
                "this node has had no heartbeat for too long: it does not know which agents are linked"
            )
        run = uuid7(self.now, random.randbytes(10))
        if key_digest:
            body, first = await self._records.remember(key_digest, body_digest, run)
            if body != body_digest:
                raise IdempotencyConflict(
                    "this Idempotency-Key was used with another body: use a new key for a new run", id=first
                )
            run = first
        life = terms.expires - terms.created + 2 * self._retention_ms
        valid = self.now + POST_VALID_MS
        try:
            taken = await self._runs.create(run, self._membership.lease, terms, payload, agents, life, valid)
        except NotAnswered as e:
            raise OutcomeUnknown(
                f"{e}; whether run {run} was accepted is not known: once Redis answers, GET /v1/runs/{run} shows it, "
                "and so does the same post under the same Idempotency-Key",
                id=run,
            ) from e
        if taken is None:
            return run, True
        owned = OwnedRun(run, terms, payload, list(agents), taken.gen, taken.until, 0)
        self._keeper.begin(owned, RunPlan(terms.pace, bytearray(b"w" * len(agents))))
        return run, False

    async def groups(self, row: RunRow, most: int) -> list[NamedGroup]:
        """The largest `most` groups of the targets that have ended."""
        named = []
        parts: dict[int, list[str]] = {}
        for group in (await self._runs.groups(row.id))[:most]:
            agents = []
            for index in group.first:
                number, place = divmod(index, AGENTS_A_BLOB)
                if number not in parts:
                    parts[number] = await self._runs.some_agents(row.id, number)
                agents += parts[number][place : place + 1]
            commands = [command_of(row.id, row.terms.created, agent) for agent in agents]
            named.append(NamedGroup(group, agents, commands))
        return named

    async def ask(self, run: str, wish: str) -> RunRow:
        """Ask for a pause, a resume or a cancel. Returns the run as it is now. Raises CommandUnknown."""
        why, _, owner = await self._runs.ask(run, wish)
        if why == "gone":
            raise unknown_run(run)
        if why == "ok":
            self._inbox.ring(owner, (ResultsAdded(wish_topic(run)),))
        row = await self._runs.read(run)
        if row is None:
            raise unknown_run(run)
        return row
