"""Keeps every command's time: deadlines, late deliveries, absent agents, cancels without an answer.

Each node runs one; whichever takes a due entry acts, and every act is a conditional step on the command's record,
so that two keepers, or one that died half-way, do no harm. It also forgets agents that were absent for 30 days.
"""

from __future__ import annotations

import asyncio
import logging
import random

from fairlead.bus.doorbell import Cancel, Deliver, Doorbell, Input
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.command import EXPIRED, OUTCOME_UNKNOWN, Command, Ending, Target
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory
from fairlead.fleet.due import Due, Taken
from fairlead.fleet.schema import Presence, State
from fairlead.routing.closing import Closing
from fairlead.routing.standing import Standing
from fairlead.routing.times import CANCEL_AGAIN_MS, CANCEL_MS, GRACE_MS, RING_AGAIN_MS
from fairlead.telemetry.logs import ids
from fairlead.wire.messages import DEADLINE

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between looks: what the keeper does is measured in seconds."""
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
            if not self._standing.good:
                continue  # this node does not know who is alive
            try:
                await asyncio.gather(*map(self._look, await self._due.take()))
            except BusUnavailable as e:
                logger.debug("the keeper waits for Redis: %s", e)
            except Exception:
                logger.exception("a round of the keeper failed")

    async def _look(self, taken: Taken) -> None:
        """`_see_to` one target; a record that cannot be dealt with must not keep the others from their time."""
        try:
            again = await self._see_to(taken.command, taken.agent, taken.at)
            if again is not None:
                await self._due.put_off(taken.command, taken.agent, taken.at, again)
        except BusUnavailable:
            raise
        except Exception:
            about = ids(agent=taken.agent, command=taken.command)
            logger.exception(
                "the keeper failed on %s of %s; it is looked at again", taken.command, taken.agent, extra=about
            )

    async def _see_to(self, command: str, agent: str, now: int) -> int | None:
        """Do what this target needs now; returns when to look again (ms), None for never."""
        found = await self._records.look_up(command)
        target = next((t for t in found.targets if t.agent == agent), None) if found is not None else None
        if found is None or target is None or target.state.over:
            self._closing.forget(command, agent)
            return None
        if target.state is State.QUEUED:
            return await self._wait_for_agent(found, target, now)
        if now >= found.expires + GRACE_MS:
            how = Ending(code="deadline", message="the deadline passed before the agent ended the command")
            again = await self._finish(found, target, State.TIMEOUT, how)
            await self._ring(found, target, Cancel(agent, command, DEADLINE))
            return again
        again = found.expires + GRACE_MS
        if found.cancel_asked:
            await self._ring(found, target, Cancel(agent, command))
            if now >= found.cancel_asked + CANCEL_MS:
                how = Ending(code="cancel_unconfirmed", message="the agent did not confirm the end within 10 s")
                return await self._finish(found, target, State.CANCELLED, how)
            again = min(again, found.cancel_asked + CANCEL_MS, now + CANCEL_AGAIN_MS)
        elif found.has_input:
            await self._ring(found, target, Input(agent, command))
        return again

    async def _ring(self, command: Command, target: Target, doorbell: Doorbell) -> None:
        row = await self._directory.look_up(target.agent)
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (doorbell,))

    async def _wait_for_agent(self, command: Command, target: Target, now: int) -> int | None:
        row = await self._directory.look_up(target.agent)
        if row is not None:
            # Again, since it could not be when the command was posted, or Redis has lost it since.
            await self._directory.dispatch(target.agent, command.id, command.expires, self._standing.valid_until())
        presence, _, why = (
            self._standing.table.presence(row, now) if row is not None else (Presence.OFFLINE, 0, "it was forgotten")
        )
        if row is not None and presence is Presence.ONLINE:
            if now >= command.expires:
                return await self._finish(command, target, State.EXPIRED, EXPIRED, only_from=State.QUEUED)
            self._inbox.ring(row.lease, (Deliver(target.agent, command.id),))
            return min(now + RING_AGAIN_MS, command.expires)
        patience = min(command.hold_until, command.expires)
        if now < patience and row is not None and not row.lease:
            return patience  # it finds the command by itself when it comes back; this is only the end of its patience
        if now < patience:
            if row is not None:  # its node may have begun a life that this one has not read of yet
                self._inbox.ring(row.lease, (Deliver(target.agent, command.id),))
            return min(patience, now + RING_AGAIN_MS)
        how = Ending(
            code="agent_offline", message=f"agent {target.agent!r} did not come back: {why}", temporary=True
        )  # fmt: skip
        return await self._finish(command, target, State.OFFLINE, how, only_from=State.QUEUED)

    async def _finish(
        self, command: Command, target: Target, state: State, how: Ending, only_from: State | None = None
    ) -> int | None:
        """End the target; returns when to look again, if it has just gone on instead."""
        if target.state is State.QUEUED and target.attempt:
            state, how = State.FAILED, OUTCOME_UNKNOWN  # it waits to be run again: the first run may have done it
        done = await self._records.finish(command.id, target.agent, state, how, only_from)
        if done.why == "ok":
            self._closing.over(command.id, target.agent, state.value, done.followers, how.code, command.origin)
        elif done.why == "kept":
            return command.expires + GRACE_MS
        else:
            self._closing.forget(command.id, target.agent)
        return None

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
            rows = {row.agent: row for row in await self._directory.look_up_all(page)}
            for agent in page:
                row = rows.get(agent)
                if row is None:  # its claim was refused
                    await self._directory.forget(agent, 0, "")
                elif now - row.seen > schema.FORGET_MS and not self._standing.table.holds(row.lease, now):
                    await self._directory.forget(agent, now - schema.FORGET_MS, row.lease)
            after = page[-1]
