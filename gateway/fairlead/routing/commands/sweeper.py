"""Handles every command that is due: deadlines, lost deliveries, absent agents, cancels without an answer.

Each node runs one. A round is two seconds of the fleet's clock. For each round and shard two nodes are chosen, so that
the cost does not grow with the number of nodes, and the death of one of them goes unnoticed. They ask Redis when the
first target of the shard is due, and take from it at that very time. Whoever takes a due target
acts on it, and every action is a conditional step on the command's record, so two sweepers, or one that dies half-way,
do no harm. A sweeper that finds much to do continues until nothing is due, in small batches between which the event
loop does its other work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet.command_record import CommandRecord, Settled, StoredEnd
from fairlead.fleet.deadline_queue import DueTarget, DueTargets
from fairlead.fleet.node_table import choose
from fairlead.fleet.schema import TargetState, deadlines_key
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.due_target import DueTargetHandler
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import GRACE_MS
from fairlead.shards import SHARDS, command_shard
from fairlead.store.answer import Answer, map_bounded
from fairlead.telemetry.logs import ids

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUND_MS = 2_000
"""An idle fleet costs Redis one call for each shard and sweeper in this time. A target that was added since the last
round, and is due before the next one, is handled at the beginning of the next one; so this is not longer than it may
take to end a command after its deadline (see GRACE_MS)."""
SWEEPERS = 2
"""Nodes that sweep a shard in one round: one of them may have died a moment ago."""
JITTER = 0.02
"""The longest random delay before a round, in seconds."""
BATCH = 64
"""Targets that are handled at once: a millisecond of the event loop, and two of Redis."""
BATCHES_AT_ONCE = 4
"""Batches in flight at once, which fill two batches of the store: Redis handles one while this node handles the
other."""
UNSETTLED_LIMIT = 131_072
"""Ended targets whose settling may wait for the ends of others: some 30 MB. At some 80 µs each they wait for ten
seconds, after which other nodes would begin to settle them as well."""
Found: TypeAlias = CommandRecord | Settled | FairleadError
TIMEOUT = StoredEnd(code="deadline", message="it did not end before its deadline")
"""Packed it takes 59 bytes. A value of more than 64 bytes (`hash-max-listpack-value`) makes Redis convert the record's
hash, which takes longer than everything else that ends a command."""


class CommandSweeper:
    def __init__(self, fleet: FleetStore, inbox: Inbox, completion: Completion, membership: Membership) -> None:
        self._gate = fleet.gate
        self._handler = DueTargetHandler(fleet.directory, fleet.records, inbox, completion, membership)
        self._records = fleet.records
        self._deadlines = fleet.deadlines
        self._completion = completion
        self._membership = membership
        self._round = 0
        """The round of the last sweep, by the fleet's clock."""
        self._next: dict[int, int] = {}
        """When the next target of each shard that is swept in this round is due (ms)."""
        self._again: dict[int, int] = {}
        """When this node takes from a shard again (ms), also if others sweep it by then."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            if not self._membership.alive:
                continue  # this node does not know which nodes are alive
            try:
                await self.sweep(await self.due_shards())
            except BusUnavailable as e:
                logger.debug("the command sweeper waits for Redis: %s", e)
            except Exception:
                logger.exception("a sweep of commands failed")

    def _pause(self) -> float:
        """Seconds until the next round, or until a target is due that this node knows of."""
        now = self._membership.now()
        at = min([now - now % ROUND_MS + ROUND_MS, *self._next.values(), *self._again.values()])
        return max(0, at - now) / 1000 + random.uniform(0, JITTER)

    async def due_shards(self) -> list[int]:
        """The shards in which targets are due now, as far as this node knows and has to know."""
        now = self._membership.now()
        if now // ROUND_MS != self._round:
            await self._begin_round(now)
        due = {shard for known in (self._next, self._again) for shard, at in known.items() if at <= now}
        for shard in due:
            self._next.pop(shard, None)
            self._again.pop(shard, None)
        # What a failover may have lost is swept later, once it is certain.
        closed = {shard for shard in due if self._gate.closed_for(deadlines_key(shard))}
        self._again.update(dict.fromkeys(closed, now + GRACE_MS))
        return sorted(due - closed)

    async def _begin_round(self, now: int) -> None:
        """Find out when the first target of each shard of this node is due."""
        self._round = now // ROUND_MS
        shards = shards_of(self._round, self._membership.lease, self._membership.living())
        self._next = dict.fromkeys(shards, now + GRACE_MS)  # of those that do not answer
        for shard, at in (await self._deadlines.first(shards)).items():
            if at is None:
                del self._next[shard]
            else:
                self._next[shard] = at

    async def sweep(self, shards: Sequence[int]) -> None:
        """Handle everything that is due in `shards`: first the ends, which callers wait for, then what else follows an
        end.

        Raises BusUnavailable if Redis is away. What was not done by then is due again.
        """
        ended: list[tuple[str, str]] = []
        taking = self._take(shards)
        try:
            while taking is not None:
                due = await taking
                self._next.update(due.next)
                # Take the next ones meanwhile, so that Redis always has something to do.
                taking = self._take(due.more) if len(ended) + len(due.taken) < UNSETTLED_LIMIT else None
                async for batch, answers in map_bounded(self._time_out, _batches(due.taken), BATCHES_AT_ONCE):
                    await self._handle_batch(batch, answers, ended)
                if taking is None:
                    # If this fails, or is never reached, they are still due: see `_handle_batch`.
                    async for _ in map_bounded(self._settle, _batches(ended), BATCHES_AT_ONCE):
                        pass
                    ended.clear()
                    taking = self._take(due.more)
        finally:
            if taking is not None:
                taking.cancel()  # its targets are due again after TAKEN_MS

    def _take(self, shards: Sequence[int]) -> asyncio.Task[DueTargets] | None:
        if not shards:
            return None
        taking = asyncio.create_task(self._deadlines.take(shards))
        taking.add_done_callback(_retrieve)
        return taking

    def _time_out(self, batch: Sequence[DueTarget]) -> Answer[Sequence[Found]]:
        return self._records.time_out([(taken.command, taken.agent, taken.at - GRACE_MS) for taken in batch], TIMEOUT)

    def _settle(self, batch: Sequence[tuple[str, str]]) -> Answer[None]:
        return self._completion.settle_timed_out(batch, TIMEOUT.code)

    async def _handle_batch(
        self, batch: Sequence[DueTarget], answers: Sequence[Found], ended: list[tuple[str, str]]
    ) -> None:
        """Handle the answers to `_time_out`, and add to `ended` the targets that their deadline has ended and whose
        agents may still run them. Raises BusUnavailable once all are handled, if Redis did not answer for one of
        them."""
        others: list[tuple[DueTarget, CommandRecord]] = []
        away: BusUnavailable | None = None
        for taken, found in zip(batch, answers, strict=True):
            if isinstance(found, CommandRecord):
                others.append((taken, found))
            elif isinstance(found, BusUnavailable):
                away = found
            elif isinstance(found, Exception):
                _log_failure(taken, found)
            elif found.why == "ended":
                self._completion.timed_out(taken.command, taken.agent, found.followers, TIMEOUT.code, found.origin)
                ended.append((taken.command, taken.agent))
            elif found.state == TargetState.TIMEOUT:
                # A sweeper ended it and did no more: it died, or Redis did not answer it in time.
                self._completion.notify(taken.command, found.followers)
                ended.append((taken.command, taken.agent))
            else:
                self._completion.forget(taken.command, taken.agent)
        for error in await asyncio.gather(*(self._handle(taken, found) for taken, found in others)):
            away = away or error
        if away is not None:
            raise away

    async def _handle(self, taken: DueTarget, found: CommandRecord) -> BusUnavailable | None:
        """Handle one target that has not ended, and reschedule it. A record that cannot be handled is logged, and an
        error of Redis returned: neither may delay the other targets of the batch."""
        try:
            again = await self._handler.handle(found, found.targets[0], taken.at)
            if again is not None:
                await self._deadlines.reschedule(taken.command, taken.agent, taken.at, again)
                if again < taken.at + ROUND_MS:  # the next round may begin later
                    shard = command_shard(taken.command)
                    self._again[shard] = min(again, self._again.get(shard, again))
        except BusUnavailable as e:
            return e
        except Exception as e:
            _log_failure(taken, e)
        return None


def shards_of(round_number: int, lease: str, living: Sequence[str]) -> list[int]:
    """The shards that the node with `lease` sweeps in one round of the fleet's clock."""
    return [s for s in range(SHARDS) if lease in choose(f"due {round_number} {s}", living, SWEEPERS)]


def _batches(targets: Sequence[T]) -> Iterator[Sequence[T]]:
    return (targets[start : start + BATCH] for start in range(0, len(targets), BATCH))


def _retrieve(taking: asyncio.Task[DueTargets]) -> None:
    """Mark its error as retrieved: the sweep that awaits it raises it, and a sweep that failed before does not."""
    if not taking.cancelled():
        taking.exception()


def _log_failure(taken: DueTarget, error: Exception) -> None:
    about = ids(agent=taken.agent, command=taken.command)
    logger.error(
        "the command sweeper failed on %s of %s, and tries again",
        taken.command,
        taken.agent,
        exc_info=error,
        extra=about,
    )
