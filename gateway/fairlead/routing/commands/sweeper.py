"""Keeps every command's time: deadlines, late deliveries, absent agents, cancels without an answer.

Each node runs one. A second of the fleet's clock is a turn: for each turn and shard two nodes are chosen, so that the
cost of looking does not grow with the nodes and the death of one of them is not felt. Whoever takes a due entry acts,
and every act is a conditional step on the command's record, so that two keepers, or one that died half-way, do no harm.
A keeper that finds much to do goes on until nothing is due, in small parts between which the loop does its other work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

from fairlead.bus.doorbell import CancelRequested, CommandQueued, Doorbell, InputAdded
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable, FairleadError
from fairlead.fleet import schema
from fairlead.fleet.command_record import EXPIRED, OUTCOME_UNKNOWN, CommandRecord, Settled, StoredEnd, Target
from fairlead.fleet.commands import Commands
from fairlead.fleet.deadline_queue import DeadlineQueue, DueTarget, DueTargets
from fairlead.fleet.directory import Directory
from fairlead.fleet.rendezvous import choose
from fairlead.fleet.schema import Presence, TargetState
from fairlead.routing.commands.completion import Completion
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import CANCEL_AGAIN_MS, CANCEL_MS, GRACE_MS, RING_AGAIN_MS
from fairlead.store.answer import Answer, map_bounded
from fairlead.telemetry.logs import ids

logger = logging.getLogger(__name__)

T = TypeVar("T")

TURN_MS = 1_000
"""Not longer than GRACE_MS: what a look puts off until its grace is over, the next turn's look sees beforehand."""
KEEPERS = 2
"""Nodes that look at a shard in one turn: one may have died a moment ago."""
JITTER = 0.02
"""Seconds."""
PART = 64
"""Targets that are seen to at once: a millisecond of the loop, and two of Redis."""
AT_ONCE = 4
"""Parts that are asked for at once, two batches: Redis deals with one while this node deals with the other."""
OWED = 131_072
"""Ends whose rest may wait for the ends of others: some 30 MB, and at some 80 µs each they wait for ten seconds, after
which other nodes would begin with the rest as well."""
Found: TypeAlias = CommandRecord | Settled | FairleadError
TIMEOUT = StoredEnd(code="deadline", message="it did not end before its deadline")
"""Packed it has 59 bytes: a value of more than 64 (`hash-max-listpack-value`) makes Redis convert the record's hash,
which takes longer than all else that ends a command."""


class CommandSweeper:
    def __init__(
        self,
        directory: Directory,
        records: Commands,
        due: DeadlineQueue,
        inbox: Inbox,
        completion: Completion,
        membership: Membership,
    ) -> None:
        self._directory = directory
        self._records = records
        self._due = due
        self._inbox = inbox
        self._completion = completion
        self._membership = membership
        self._turn = 0
        """The last turn in which this node has looked, by the fleet's clock."""
        self._next: dict[int, int] = {}
        """When the first entry of each shard that it looked at in this turn is due (ms)."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rest())
            if not self._membership.alive:
                continue  # this node does not know who is alive
            try:
                await self.keep(self.shards())
            except BusUnavailable as e:
                logger.debug("the keeper waits for Redis: %s", e)
            except Exception:
                logger.exception("a round of the keeper failed")

    def _rest(self) -> float:
        """Seconds until the next turn, or until an entry is due that this node knows of."""
        now = self._membership.now()
        at = min([now - now % TURN_MS + TURN_MS, *self._next.values()])
        return max(0, at - now) / 1000 + random.uniform(0, JITTER)

    def shards(self) -> list[int]:
        """Those that this node looks at now."""
        now = self._membership.now()
        turn = now // TURN_MS
        if turn != self._turn:
            self._turn, self._next = turn, {}
            return shards_of(turn, self._membership.lease, self._membership.living())
        shards = [shard for shard, at in self._next.items() if at <= now]
        for shard in shards:
            del self._next[shard]
        return shards

    async def keep(self, shards: Sequence[int]) -> None:
        """See to all that is due in `shards`: first the ends, which callers wait for, then the rest of each."""
        ended: list[tuple[str, str]] = []
        taking = self._take(shards)
        try:
            while taking is not None:
                look = await taking
                self._next.update(look.next)
                # The next ones are taken meanwhile, so that Redis always has something to do.
                taking = self._take(look.more) if len(ended) + len(look.taken) < OWED else None
                async for part, answers in map_bounded(self._time_out, _parts(look.taken), AT_ONCE):
                    await self._see_to_all(part, answers, ended)
                if taking is None:
                    # If this fails, or never comes to it, they are still due: see `_see_to_all`.
                    async for _ in map_bounded(self._settle, _parts(ended), AT_ONCE):
                        pass
                    ended.clear()
                    taking = self._take(look.more)
        finally:
            if taking is not None:
                taking.cancel()  # what it has taken is due again after TAKEN_MS

    def _take(self, shards: Sequence[int]) -> asyncio.Task[DueTargets] | None:
        if not shards:
            return None
        taking = asyncio.create_task(self._due.take(shards))
        taking.add_done_callback(_retrieve)
        return taking

    def _time_out(self, part: Sequence[DueTarget]) -> Answer[Sequence[Found]]:
        return self._records.time_out([(taken.command, taken.agent, taken.at - GRACE_MS) for taken in part], TIMEOUT)

    def _settle(self, part: Sequence[tuple[str, str]]) -> Answer[None]:
        return self._completion.settle_timed_out(part, TIMEOUT.code)

    async def _see_to_all(
        self, part: Sequence[DueTarget], answers: Sequence[Found], ended: list[tuple[str, str]]
    ) -> None:
        """Adds to `ended` the targets that have ended by their deadline, whose agents may still run them."""
        others: list[tuple[DueTarget, CommandRecord]] = []
        away: BusUnavailable | None = None
        for taken, found in zip(part, answers, strict=True):
            if isinstance(found, CommandRecord):
                others.append((taken, found))
            elif isinstance(found, BusUnavailable):
                away = found
            elif isinstance(found, Exception):
                _failed(taken, found)
            elif found.why == "ended":
                self._completion.timed_out(taken.command, taken.agent, found.followers, TIMEOUT.code, found.origin)
                ended.append((taken.command, taken.agent))
            elif found.state == TargetState.TIMEOUT:
                # A keeper ended it and came no further: it died, or Redis did not answer it in time.
                self._completion.notify(taken.command, found.followers)
                ended.append((taken.command, taken.agent))
            else:
                self._completion.forget(taken.command, taken.agent)
        await asyncio.gather(*(self._look(taken, found) for taken, found in others))
        if away is not None:
            raise away

    async def _look(self, taken: DueTarget, found: CommandRecord) -> None:
        """`_see_to` one target; a record that cannot be dealt with must not keep the others from their time."""
        try:
            again = await self._see_to(found, found.targets[0], taken.at)
            if again is not None:
                await self._due.reschedule(taken.command, taken.agent, taken.at, again)
        except BusUnavailable:
            raise
        except Exception as e:
            _failed(taken, e)

    async def _see_to(self, found: CommandRecord, target: Target, now: int) -> int | None:
        """Do what this target needs now; returns when to look again (ms), None for never."""
        if target.state is TargetState.QUEUED:
            return await self._wait_for_agent(found, target, now)
        again = found.expires + GRACE_MS
        if found.cancel_asked:
            await self._ring(target, CancelRequested(target.agent, found.id))
            if now >= found.cancel_asked + CANCEL_MS:
                how = StoredEnd(code="cancel_unconfirmed", message="the agent did not confirm the end within 10 s")
                return await self._finish(found, target, TargetState.CANCELLED, how)
            again = min(again, found.cancel_asked + CANCEL_MS, now + CANCEL_AGAIN_MS)
        elif found.has_input:
            await self._ring(target, InputAdded(target.agent, found.id))
        return again

    async def _ring(self, target: Target, doorbell: Doorbell) -> None:
        row = await self._directory.look_up(target.agent)
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (doorbell,))

    async def _wait_for_agent(self, command: CommandRecord, target: Target, now: int) -> int | None:
        row = await self._directory.look_up(target.agent)
        if row is not None:
            # Again, since it could not be when the command was posted, or Redis has lost it since.
            await self._directory.dispatch(target.agent, command.id, command.expires, self._membership.valid_until())
        presence, _, why = (
            self._membership.table.presence(row, now) if row is not None else (Presence.OFFLINE, 0, "it was forgotten")
        )
        if row is not None and presence is Presence.ONLINE:
            if now >= command.expires:
                return await self._finish(command, target, TargetState.EXPIRED, EXPIRED, only_from=TargetState.QUEUED)
            self._inbox.ring(row.lease, (CommandQueued(target.agent, command.id),))
            return min(now + RING_AGAIN_MS, command.expires)
        patience = min(command.hold_until, command.expires)
        if now < patience and row is not None and not row.lease:
            return patience  # it finds the command by itself when it comes back; this is only the end of its patience
        if now < patience:
            if row is not None:  # its node may have begun a life that this one has not read of yet
                self._inbox.ring(row.lease, (CommandQueued(target.agent, command.id),))
            return min(patience, now + RING_AGAIN_MS)
        how = StoredEnd(
            code="agent_offline", message=f"agent {target.agent!r} did not come back: {why}", temporary=True
        )  # fmt: skip
        return await self._finish(command, target, TargetState.OFFLINE, how, only_from=TargetState.QUEUED)

    async def _finish(
        self,
        command: CommandRecord,
        target: Target,
        state: TargetState,
        how: StoredEnd,
        only_from: TargetState | None = None,
    ) -> int | None:
        """End the target; returns when to look again, if it has just gone on instead."""
        if target.state is TargetState.QUEUED and target.attempt:
            state, how = TargetState.FAILED, OUTCOME_UNKNOWN  # it waits to be run again: the first run may have done it
        done = await self._records.finish(command.id, target.agent, state, how, only_from)
        if done.why == "ok":
            self._completion.completed(command.id, target.agent, state.value, done.followers, how.code, command.origin)
        elif done.why == "kept":
            return command.expires + GRACE_MS
        else:
            self._completion.forget(command.id, target.agent)
        return None


def shards_of(turn: int, lease: str, living: Sequence[str]) -> list[int]:
    """The shards that the node of `lease` looks at in one turn of the fleet's clock."""
    return [s for s in range(schema.DEADLINE_SHARDS) if lease in choose(f"due {turn} {s}", living, KEEPERS)]


def _parts(targets: Sequence[T]) -> Iterator[Sequence[T]]:
    return (targets[start : start + PART] for start in range(0, len(targets), PART))


def _retrieve(taking: asyncio.Task[DueTargets]) -> None:
    """What failed is told by whoever awaits it; nobody may."""
    if not taking.cancelled():
        taking.exception()


def _failed(taken: DueTarget, error: Exception) -> None:
    about = ids(agent=taken.agent, command=taken.command)
    logger.error(
        "the keeper failed on %s of %s; it is looked at again", taken.command, taken.agent, exc_info=error, extra=about
    )
