"""Keeps every command's time: deadlines, late deliveries, absent agents, cancels without an answer.

Each node runs one; whichever takes a due entry acts, and every act is a conditional step on the command's record,
so that two keepers, or one that died half-way, do no harm. It also forgets agents that were absent for 30 days.
"""

from __future__ import annotations

import asyncio
import logging
import random

from fairlead.bus.doorbell import Cancel, Deliver
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.commands import EXPIRED, Command, Commands, Ending, Target
from fairlead.fleet.directory import Directory
from fairlead.fleet.due import Due
from fairlead.fleet.schema import Presence, State
from fairlead.routing.closing import Closing
from fairlead.routing.dispatch import CANCEL_AGAIN_MS, CANCEL_MS, RING_AGAIN_MS
from fairlead.routing.standing import Standing

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between looks: what the keeper does is measured in seconds."""
GRACE_MS = 2_000
"""The agent ends a command at its deadline by itself and its end is on the way."""
SWEEP_PERIOD = 60.0
"""One shard of the index a minute: the whole fleet about once an hour."""
SWEEP_PAGE = 200


class Keeper:
    def __init__(
        self,
        directory: Directory,
        records: Commands,
        due: Due,
        inbox: Inbox,
        closing: Closing,
        standing: Standing,
    ) -> None:
        self._directory = directory
        self._records = records
        self._due = due
        self._inbox = inbox
        self._closing = closing
        self._standing = standing

    async def keep_forever(self) -> None:
        while True:
            await asyncio.sleep(PERIOD * random.uniform(0.8, 1.2))
            try:
                now, taken = await self._due.take()
                await asyncio.gather(*(self._look(command, agent, now) for command, agent in taken))
            except BusUnavailable as e:
                logger.debug("the keeper waits for Redis: %s", e)
            except Exception:
                logger.exception("a round of the keeper failed")

    async def _look(self, command: str, agent: str, now: int) -> None:
        """`_see_to` one target; a record that cannot be dealt with must not keep the others from their time."""
        try:
            await self._see_to(command, agent, now)
        except BusUnavailable:
            raise
        except Exception:
            logger.exception("the keeper failed on %s of %s; it is looked at again", command, agent)

    async def _see_to(self, command: str, agent: str, now: int) -> None:
        """See what this target needs now, do it, and say when to look again."""
        found = await self._records.look_up(command)
        target = next((t for t in found.targets if t.agent == agent), None) if found is not None else None
        if found is None or target is None or target.state.over:
            self._closing.forget(command, agent)
            return
        if target.state is State.QUEUED:
            await self._wait_for_agent(found, target, now)
        elif now >= found.expires + GRACE_MS:
            await self._expire(found, target)
        elif found.cancel_asked and now >= found.cancel_asked + CANCEL_MS:
            how = Ending(code="cancel_unconfirmed", message="the agent did not confirm the end within 10 s")
            await self._finish(found, target, State.CANCELLED, how)
            await self._ring_cancel(found, target)
        else:
            again = found.expires + GRACE_MS
            if found.cancel_asked:
                await self._ring_cancel(found, target)
                again = min(again, found.cancel_asked + CANCEL_MS, now + CANCEL_AGAIN_MS)
            await self._due.schedule(command, agent, again)

    async def _expire(self, command: Command, target: Target) -> None:
        how = Ending(code="deadline", message="the deadline passed before the agent ended the command")
        await self._finish(command, target, State.TIMEOUT, how)
        await self._ring_cancel(command, target)

    async def _ring_cancel(self, command: Command, target: Target) -> None:
        row = await self._directory.look_up(target.agent)
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (Cancel(target.agent, command.id),))

    async def _wait_for_agent(self, command: Command, target: Target, now: int) -> None:
        row = await self._directory.look_up(target.agent)
        presence, _, why = (
            self._standing.table.presence(row, now) if row is not None else (Presence.OFFLINE, 0, "it was forgotten")
        )
        if row is not None and presence is Presence.ONLINE:
            if now >= command.expires:
                await self._finish(command, target, State.EXPIRED, EXPIRED, only_from=State.QUEUED)
                return
            self._inbox.ring(row.lease, (Deliver(target.agent, command.id),))
            again = now + RING_AGAIN_MS
        elif now >= min(command.hold_until, command.expires):
            how = Ending(
                code="agent_offline",
                message=f"agent {target.agent!r} did not come back: {why}",
                temporary=True,
            )
            await self._finish(command, target, State.OFFLINE, how, only_from=State.QUEUED)
            return
        else:
            # An agent that comes back finds the command by itself; this is only the end of its patience.
            again = command.hold_until
        await self._due.schedule(command.id, target.agent, min(again, command.expires))

    async def _finish(
        self, command: Command, target: Target, state: State, how: Ending, only_from: State | None = None
    ) -> None:
        done = await self._records.finish(command.id, target.agent, state, how, only_from)
        if done.why == "ok":
            self._closing.over(command.id, target.agent, state.value, done.followers)
        elif done.why == "kept":
            await self._due.schedule(command.id, target.agent, command.expires + GRACE_MS)
        else:
            self._closing.forget(command.id, target.agent)

    async def sweep_forever(self) -> None:
        """Walk the index, shard by shard, and forget who was absent too long."""
        shard = random.randrange(schema.INDEX_SHARDS)
        while True:
            await asyncio.sleep(SWEEP_PERIOD * random.uniform(0.8, 1.2))
            try:
                await self._sweep(shard)
            except BusUnavailable as e:
                logger.debug("the sweep waits for Redis: %s", e)
                continue
            except Exception:
                logger.exception("the sweep of shard %d failed", shard)
            shard = (shard + 1) % schema.INDEX_SHARDS

    async def _sweep(self, shard: int) -> None:
        after = ""
        while page := await self._directory.page(shard, after, SWEEP_PAGE):
            now = self._standing.now()
            for row in await self._directory.look_up_all(page):
                if now - row.seen > schema.FORGET_MS and not self._standing.table.holds(row.lease, now):
                    await self._directory.forget(row.agent, now - schema.FORGET_MS, row.lease)
            after = page[-1]
