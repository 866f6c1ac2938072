"""Reads runs: lists them, and reads the ends of one from any offset, on any node, with what each target returned.

Called by the API. A doorbell tells a reader that there are more; without one it reads again after a while. What a
target has returned is read from the record of its command, so a run stores nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from fairlead.errors import BusUnavailable, CommandUnknown, InvalidRequest, NodeBusy, RecordLost
from fairlead.fleet.command_record import CommandRecord, OutOfRange, Result, ResultPage
from fairlead.fleet.runs.run_record import RunEnd, RunRow, RunState, RunTargetState
from fairlead.fleet.runs.runs import AGENTS_A_BLOB, RunPage, Runs
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.routing.runs.target_commands import command_of
from fairlead.routing.tenant_limits import has_place
from fairlead.routing.timeouts import wait_for_redis
from fairlead.store.answer import AnswerOrError, map_bounded
from fairlead.wire.ids import uuid7_ms

OUTPUT_BYTES: Final = 64 << 10
"""Output of one target that the stream of its run has. The command has the rest."""
AT_ONCE: Final = 32
"""Records that are read at once: most fit into 2 MiB together."""
POLL_INTERVAL: Final = 2.0
LISTED: Final = 100
"""Runs that are read from Redis at once."""
SCANNED: Final = 500
"""Runs that are read for one page, at some 60 µs each. A caller who sees few of them asks for many pages, and others
have their turn between two of them."""
UNWRITTEN_MS: Final = 60_000
READERS: Final = 100
"""Readers on one node. Each may have AT_ONCE outputs on its way."""
OUTAGE: Final = 30.0
BLOBS: Final = 4
"""Parts of the list of agents that a reader remembers, of 1,000 agents each."""


class TargetResult(msgspec.Struct, frozen=True):
    """How one target ended. `record` and `output` are None and empty if its command has no record any more. `dropped`
    says that its output was dropped after the end, to make room."""

    offset: int
    agent: str
    command: str
    end: RunEnd
    record: CommandRecord | None
    output: list[Result]
    truncated: bool
    dropped: bool = False


class RunUpdate(msgspec.Struct, frozen=True):
    """New results of a run, and its state after them. `last` says that there will be no more."""

    results: list[TargetResult]
    state: RunState
    counts: dict[RunTargetState, int]
    last: bool = False
    more: int | None = None
    """The offset from which the caller must ask again, because this node stops."""


class RunResults:
    def __init__(self, fleet: FleetStore, runs: Runs, followers: Followers, membership: Membership) -> None:
        self._store = fleet.store
        self._records = fleet.records
        self._runs = runs
        self._followers = followers
        self._membership = membership
        self._readers: Counter[str] = Counter()
        """The readers of each tenant on this node."""

    async def look_up(self, run: str, tenant: str) -> RunRow:
        """Raises CommandUnknown if the tenant has no such run."""
        row = await self._runs.read(run)
        if row is None or row.terms.tenant != tenant:
            raise unknown_run(run)
        return row

    async def list_runs(
        self, tenant: str, before: str, most: int, shown: Callable[[RunRow], bool]
    ) -> tuple[list[RunRow], str | None]:
        """Up to `most` runs of a tenant that were posted before the run `before`, the newest first: those for which
        `shown` holds among the next SCANNED; and the value of `before` for the next ones, None if there are none."""
        rows: list[RunRow] = []
        scanned = 0
        while names := await self._runs.recent(tenant, before, LISTED):
            found = [pair async for pair in map_bounded(self._runs.read, names, LISTED)]
            now = self._membership.now()
            # A run is written after its name in the index.
            gone = [name for name, row in found if row is None and now - uuid7_ms(name) > UNWRITTEN_MS]
            if gone:
                self._runs.forget_recent(tenant, gone)
            rows += [row for _, row in found if row is not None and row.terms.tenant == tenant and shown(row)]
            if len(rows) > most:
                return rows[:most], rows[most - 1].id
            before, scanned = names[-1], scanned + len(names)
            if scanned >= SCANNED:
                return rows, before
        return rows, None

    async def check(self, row: RunRow, offset: int) -> None:
        """Raise what `read` would raise at once, before any of the response is sent; and NodeBusy if this node has as
        many readers as it takes, or the tenant its share."""
        self._check_place(row.terms.tenant)
        _checked(row.id, offset, await self._runs.follow(row.id, offset))

    async def read(self, row: RunRow, offset: int, follow: bool, with_output: bool) -> AsyncGenerator[RunUpdate]:
        """Yield results from `offset` on, until the run has ended; without `follow`, until they end now. With
        `with_output`, it reads what the targets returned.

        An update without results only tells the state. Raises InvalidRequest, RecordLost, BusUnavailable,
        and NodeBusy if others have come since `check`.
        """
        agents = _Agents(self._runs, row.id)
        lease = self._membership.lease if follow else ""
        with self._counted(row.terms.tenant), self._followers.follow(row.id) as follower:
            while True:
                follower.clear()
                if self._followers.released and follow:
                    yield RunUpdate([], row.state, row.counts, more=offset)
                    return
                try:
                    page = _checked(row.id, offset, await self._runs.follow(row.id, offset, lease))
                    for at in range(0, max(len(page.ends), 1), AT_ONCE):
                        ends = page.ends[at : at + AT_ONCE]
                        results = await self._results(row, agents, offset, ends, with_output)
                        offset += len(results)
                        last = bool(page.ended) and offset == page.total
                        yield RunUpdate(results, page.state, page.counts, last)
                except BusUnavailable:
                    if not follow or not await wait_for_redis(self._store, OUTAGE):
                        raise
                    continue
                if last or (not follow and offset == page.total):
                    return
                if offset == page.total:
                    await follower.wait(POLL_INTERVAL)

    def _check_place(self, tenant: str) -> None:
        if not has_place(tenant, self._readers, READERS):
            count = self._readers.total()
            raise NodeBusy(f"this node serves {count} readers of runs, the maximum: use another node, or close one")

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        self._check_place(tenant)
        self._readers[tenant] += 1
        try:
            yield
        finally:
            self._readers -= Counter([tenant])  # and forget a tenant that has none

    async def _results(
        self, row: RunRow, agents: _Agents, offset: int, ends: list[RunEnd], with_output: bool
    ) -> list[TargetResult]:
        names = [await agents.find(end.index) for end in ends]
        commands = [command_of(row.id, row.terms, name) for name in names]

        if not with_output:
            return [
                TargetResult(offset + at, names[at], commands[at], end, None, [], False) for at, end in enumerate(ends)
            ]

        def read(command: str) -> AnswerOrError[ResultPage | OutOfRange | None]:
            return AnswerOrError(self._records.read(command, 0, OUTPUT_BYTES))

        results = []
        at = 0
        async for command, page in map_bounded(read, commands, AT_ONCE):
            if isinstance(page, Exception):
                raise page
            output: list[Result] = []
            record, truncated = None, False
            dropped = isinstance(page, OutOfRange) and page.dropped_at > 0
            if dropped:
                record = await self._records.look_up(command)
            elif isinstance(page, ResultPage):
                output, truncated = _beginning(page.results)
                record = page.ended or await self._records.look_up(command)
                truncated = truncated or page.ended is None
            results.append(TargetResult(offset + at, names[at], command, ends[at], record, output, truncated, dropped))
            at += 1
        return results


class _Agents:
    """The agents of a run by their index, read in parts."""

    def __init__(self, runs: Runs, run: str) -> None:
        self._runs = runs
        self._run = run
        self._parts: dict[int, list[str]] = {}

    async def find(self, index: int) -> str:
        number, place = divmod(index, AGENTS_A_BLOB)
        part = self._parts.get(number)
        if part is None or place >= len(part):  # agents may have joined since
            if part is None and len(self._parts) >= BLOBS:
                del self._parts[next(iter(self._parts))]
            part = self._parts[number] = await self._runs.some_agents(self._run, number)
        if place >= len(part):
            raise RecordLost(f"the record of run {self._run} is gone, because it has expired or Redis has lost data")
        return part[place]


def _beginning(results: list[Result]) -> tuple[list[Result], bool]:
    """The first OUTPUT_BYTES of the output, and whether there is more: a page has whole chunks, and often too many."""
    kept: list[Result] = []
    left = OUTPUT_BYTES
    for result in results:
        if len(result.payload) > left:
            end = max(
                (at for at in range(left, max(left - 4, -1), -1) if result.payload[at] & 0xC0 != 0x80), default=left
            )
            # Not within a character of UTF-8, as the whole output would no longer be text then.
            kept.append(msgspec.structs.replace(result, payload=result.payload[:end]))
            return kept, True
        kept.append(result)
        left -= len(result.payload)
    return kept, False


def unknown_run(run: str) -> CommandUnknown:
    return CommandUnknown(f"no run {run}: it was never posted, or its results have expired")


def _checked(run: str, offset: int, page: RunPage | None) -> RunPage:
    if page is None:
        raise RecordLost(f"the record of run {run} is gone, because it has expired or Redis has lost its data")
    if offset > page.total:
        raise InvalidRequest(
            f"from={offset} is out of range: expected at most {page.total}, the number of targets that have ended",
            field="from",
        )
    return page
