"""What callers ask of runs: begin one, try its targets again, look at one, pause, resume and cancel it.

Called by the API, on any node. What is asked is left in Redis for the run's owner, which is rung; without the doorbell
it finds the wish with its next step.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from fairlead.bus.doorbell import ResultsAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import (
    BusUnavailable,
    IdempotencyConflict,
    InvalidRequest,
    NotAnswered,
    OutcomeUnknown,
    RecordExpired,
    RecordLost,
)
from fairlead.fleet.runs.keys import run_key
from fairlead.fleet.runs.run_record import LETTERS, OwnedRun, RunGroup, RunRow, RunTargetState, RunTerms
from fairlead.fleet.runs.runs import AGENTS_A_BLOB, Runs
from fairlead.fleet.schema import run_idem_key
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.run_driver import wish_topic
from fairlead.routing.runs.run_keeper import RunKeeper
from fairlead.routing.runs.run_plan import RunPlan
from fairlead.routing.runs.run_results import unknown_run
from fairlead.routing.runs.target_commands import command_of
from fairlead.routing.timeouts import POST_VALID_MS
from fairlead.wire.ids import uuid7, uuid7_ms


class NamedGroup(msgspec.Struct, frozen=True):
    """A group of targets with the agents and commands of the first few."""

    group: RunGroup
    agents: list[str]
    commands: list[str]


class PostedRun(msgspec.Struct, frozen=True):
    """A run that is to begin. `key` is the digest of its Idempotency-Key, "" if there is none, and `body_digest` what
    that is bound to. `chosen` is the id of a signed run."""

    terms: RunTerms
    payload: bytes
    agents: Sequence[str]
    key: str = ""
    body_digest: str = ""
    chosen: str = ""


class RunService:
    def __init__(
        self, runs: Runs, fleet: FleetStore, keeper: RunKeeper, inbox: Inbox, membership: Membership, retention_ms: int
    ) -> None:
        self._runs = runs
        self._records = fleet.records
        self._keeper = keeper
        self._inbox = inbox
        self._membership = membership
        self._memory = fleet.memory
        self._gate = fleet.gate
        self._tenants = fleet.tenants
        self._retention_ms = retention_ms

    @property
    def now(self) -> int:
        """Redis TIME in ms."""
        return self._membership.now()

    async def submit(self, order: PostedRun, permit: Callable[[str], Awaitable[None]]) -> tuple[str, bool]:
        """Begin a run here. Returns its id, and whether it was posted before under the same Idempotency-Key or id.
        `permit` is awaited with the run's id before anything of the run is written, and may raise.

        Raises IdempotencyConflict, RecordExpired, QuotaExceeded, Unavailable, StoreFull and BusUnavailable, after all
        of which nothing runs, and OutcomeUnknown, after which some node may drive the run.
        """
        with self._keeper.place(order.terms.tenant):
            self._memory.check_command(len(order.payload))
            self._membership.check_alive("it does not know which agents are linked")
            return await self._begin(order, permit)

    async def _begin(self, order: PostedRun, permit: Callable[[str], Awaitable[None]]) -> tuple[str, bool]:
        """See `submit`."""
        terms, agents = order.terms, order.agents
        run = order.chosen or uuid7(self.now, random.randbytes(10))
        if order.chosen:
            await self._gate.wait_settled_for(run_key(run))  # the post may repeat one that a failover has lost
            await self._check_same(run, terms)
        elif order.key:
            run = await self._bind(order.key, order.body_digest, run)
        await permit(run)
        concurrency = terms.pace.concurrency if terms.late else min(terms.pace.concurrency, len(agents))
        await self._tenants.admit_run(terms.tenant, run, concurrency, terms.expires)
        life = terms.expires - terms.created + 2 * self._retention_ms
        valid = self.now + POST_VALID_MS
        try:
            taken = await self._runs.create(run, self._membership.lease, terms, order.payload, agents, life, valid)
        except NotAnswered as e:
            raise OutcomeUnknown(
                f"{e}; whether run {run} was accepted is not known: once Redis answers, GET /v1/runs/{run} shows it, "
                "and so does the same post under the same Idempotency-Key",
                id=run,
            ) from e
        except BusUnavailable:
            await self._uncount(terms.tenant, run)
            raise
        if taken is None:
            await self._check_same(run, terms)
            await self._uncount(terms.tenant, run)
            return run, True
        owned = OwnedRun(run, terms, order.payload, list(agents), taken.gen, taken.until, 0)
        self._keeper.begin(owned, RunPlan(terms.pace, bytearray(b"w" * len(agents)), late=terms.late))
        return run, False

    async def _uncount(self, tenant: str, run: str) -> None:
        """A post has counted a run for the quota and has not begun it: undo that, unless it goes on since an earlier
        post. Raises BusUnavailable."""
        row = await self._runs.read(run)
        if row is None or row.ended:
            self._tenants.run_ended(tenant, run)

    async def _bind(self, key_digest: str, body_digest: str, run: str) -> str:
        """Bind the Idempotency-Key to `run`; returns the run to which it is bound. Raises IdempotencyConflict, and
        RecordExpired."""
        key = run_idem_key(key_digest)
        await self._gate.wait_settled_for(key)  # the post may repeat one that a failover has lost
        body, first = await self._records.remember(key, body_digest, run)
        if body != body_digest:
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body: use a new key for a new run", id=first
            )
        if first != run:
            await self._check_not_expired(first)
        return first

    async def _check_same(self, run: str, terms: RunTerms) -> None:
        """Raises IdempotencyConflict if another run has the id of this signed one, and RecordExpired. An equal
        signature of the same caller is the same run: it covers all that the agents check."""
        if not terms.signature:
            return
        row = await self._runs.read(run)
        if row is None:
            await self._check_not_expired(run)
        elif (row.terms.signature, row.terms.subject, row.terms.tenant) != (
            terms.signature, terms.subject, terms.tenant,
        ):  # fmt: skip
            raise IdempotencyConflict(
                f"run {run} was posted with another signature or by another caller: sign a new run under a new id",
                id=run,
            )

    async def _check_not_expired(self, run: str) -> None:
        """Raises RecordExpired for a run that was posted before, if it may have run and nothing of it is left: its
        Idempotency-Key is remembered for longer. A run that was refused has never been written, and one that is too
        young to have expired may begin now."""
        if self.now - uuid7_ms(run) >= self._retention_ms and await self._runs.read(run) is None:
            raise RecordExpired(
                f"run {run}, posted under this Idempotency-Key or approval before, was kept for the retention time and "
                "is gone, or was refused. It was not begun again: use a new key to do so, or ask for another approval",
                id=run,
            )

    async def retried(self, row: RunRow, states: Collection[str]) -> tuple[bytes, list[str]]:
        """The payload of a run, and its targets that ended in one of `states`. Raises InvalidRequest if there are none
        or the run goes on, and RecordLost."""
        if not row.ended:
            raise InvalidRequest(
                f"run {row.id} goes on: expected one that has ended (wait for its end, or cancel it)", field="run"
            )
        payload, agents = await self.payload(row), await self._runs.agents(row.id)
        letters = await self._runs.states(row.id)
        if len(agents) != row.targets or len(letters) != row.targets:
            raise _parts_gone(row)
        wanted = bytes(LETTERS[RunTargetState(state)] for state in states)
        chosen = [agent for agent, letter in zip(agents, letters, strict=True) if letter in wanted]
        if not chosen:
            raise InvalidRequest(f"no target of run {row.id} ended as {' or '.join(states)}", field="states")
        return payload, chosen

    async def payload(self, row: RunRow) -> bytes:
        """The payload of a run. Raises RecordLost."""
        if (payload := await self._runs.payload(row.id)) is None:
            raise _parts_gone(row)
        return payload

    async def waiting(self, row: RunRow) -> list[tuple[int, str]]:
        """The targets of a run that have not started, each with its place among all of them. Raises RecordLost."""
        agents, letters = await self._runs.agents(row.id), await self._runs.states(row.id)
        if min(len(agents), len(letters)) < row.targets:
            raise _parts_gone(row)
        wanted = LETTERS[RunTargetState.WAITING]
        places = enumerate(zip(agents, letters, strict=False))
        return [(place, agent) for place, (agent, letter) in places if letter == wanted]

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
            commands = [command_of(row.id, row.terms, agent) for agent in agents]
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


def _parts_gone(row: RunRow) -> RecordLost:
    return RecordLost(f"parts of run {row.id} are gone, because it has expired or Redis has lost data")
