"""Handles one command that is due, as its record says: rings again, or ends it.

Called by the command sweeper. Every step is conditional on the record, so handling a command twice does no harm.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead.bus.doorbell import CancelRequested, CommandQueued, Doorbell, InputAdded
from fairlead.bus.inbox import Inbox
from fairlead.fleet.command_record import EXPIRED, OUTCOME_UNKNOWN, CommandRecord, StoredEnd, Target
from fairlead.fleet.commands import BULK, Commands
from fairlead.fleet.directory import Directory
from fairlead.fleet.node_table import Presence
from fairlead.fleet.schema import TargetState
from fairlead.routing.commands.completion import Completion
from fairlead.routing.membership.membership import Membership
from fairlead.routing.timeouts import (
    CANCEL_AGAIN_MS,
    CANCEL_MS,
    GRACE_MS,
    OFFER_SETTLED_MS,
    RING_AGAIN_MS,
    RING_RARELY_MS,
)
from fairlead.tenant import local_id

RUNG_WITHIN: Final = 0.5
"""Seconds that a sweep waits for the server of an inbox. Deadlines of other shards wait for the sweep."""


class DueTargetHandler:
    def __init__(
        self, directory: Directory, records: Commands, inbox: Inbox, completion: Completion, membership: Membership
    ) -> None:
        self._directory = directory
        self._records = records
        self._inbox = inbox
        self._completion = completion
        self._membership = membership

    async def handle(self, found: CommandRecord, target: Target, now: int) -> int | None:
        """Do what this target needs now. Returns when it is due again (ms), or None for never."""
        if target.state is TargetState.QUEUED:
            return await self._wait_for_agent(found, target, now)
        again = found.expires + GRACE_MS
        if found.cancel_asked:
            await self._ring(target, CancelRequested(target.agent, found.id))
            if now >= found.cancel_asked + CANCEL_MS:
                how = StoredEnd(code="cancel_unconfirmed", message="the agent did not confirm the end within 10 s")
                return await self._finish(found, target, TargetState.CANCELLED, how)
            again = min(again, found.cancel_asked + CANCEL_MS, now + CANCEL_AGAIN_MS)
        elif target.state is TargetState.SENT:
            again = min(again, await self._check_sent(found, target, now))
        elif found.has_input and not await self._announce_input(found, target):
            again = min(again, now + RING_AGAIN_MS)
        return again

    async def _announce_input(self, command: CommandRecord, target: Target) -> bool:
        """Ring the agent's node for new input, which nobody else announces again. Returns False if the doorbell is
        lost."""
        row = await self._directory.look_up(target.agent)
        if row is None or not row.lease:
            return True  # the node to which the agent comes back looks for input
        try:
            async with asyncio.timeout(RUNG_WITHIN):
                return await self._inbox.ring_and_wait(row.lease, InputAdded(target.agent, command.id))
        except TimeoutError:
            return False

    async def _ring(self, target: Target, doorbell: Doorbell) -> None:
        row = await self._directory.look_up(target.agent)
        if row is not None and row.lease:
            self._inbox.ring(row.lease, (doorbell,))

    async def _check_sent(self, command: CommandRecord, target: Target, now: int) -> int:
        """Ring again, ever less often, for a command that counts as sent and is not acknowledged: its node sends it,
        unless it has sent it on this link. If it was offered to a link that its agent has no longer, nobody knows
        whether it was sent there. Returns when to check again (ms)."""
        offered = not target.attempt
        if offered and now < command.created + OFFER_SETTLED_MS:
            return command.created + OFFER_SETTLED_MS
        row = await self._directory.look_up(target.agent)
        linked = row is not None and self._membership.table.holds(row.lease, now)
        if offered and (row is None or row.gen != target.gen or not linked):
            await self._records.end_offer(command.id, target.agent, target.gen, written=True)
        if row is None or not row.lease:
            # The node to which the agent comes back takes the command over.
            return now + RING_AGAIN_MS if offered else command.expires + GRACE_MS
        self._ring_queued(row.lease, command, target)
        if command.has_input:
            self._inbox.ring(row.lease, (InputAdded(target.agent, command.id),))
        return now + min(max(RING_AGAIN_MS, (now - command.created) // 2), RING_RARELY_MS)

    def _ring_queued(self, lease: str, command: CommandRecord, target: Target) -> None:
        self._inbox.ring(lease, (CommandQueued(target.agent, command.id, bulk=command.lane == BULK),))

    async def _wait_for_agent(self, command: CommandRecord, target: Target, now: int) -> int | None:
        """Ring the agent's node for a command that is not sent, or end it if its agent was absent for too long."""
        row = await self._directory.look_up(target.agent)
        if row is not None:
            # Again, because it failed when the command was posted, or Redis has lost it since.
            await self._directory.dispatch(target.agent, command.id, command.expires, self._membership.valid_until())
        presence, _, why = (
            self._membership.table.presence(row, now) if row is not None else (Presence.OFFLINE, 0, "it was forgotten")
        )
        if row is not None and presence is Presence.ONLINE:
            if now >= command.expires:
                return await self._finish(command, target, TargetState.EXPIRED, EXPIRED, only_from=TargetState.QUEUED)
            self._ring_queued(row.lease, command, target)
            return min(now + RING_AGAIN_MS, command.expires)
        timeout = min(command.hold_until, command.expires)
        if now < timeout and row is not None and not row.lease:
            return timeout  # the agent finds the command when it comes back; this is only the end of the wait
        if now < timeout:
            if row is not None:  # its node may have joined again, which this one has not read yet
                self._ring_queued(row.lease, command, target)
            return min(timeout, now + RING_AGAIN_MS)
        how = StoredEnd(
            code="agent_offline", message=f"agent {local_id(target.agent)!r} did not come back: {why}", temporary=True
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
        """End the target. Returns when it is due again if it was sent at this moment, otherwise None."""
        if target.state is TargetState.QUEUED and target.attempt:
            # It waits for another run, and the one before may have taken effect.
            state, how = TargetState.FAILED, OUTCOME_UNKNOWN
        done = await self._records.finish(command.id, target.agent, state, how, only_from)
        if done.why == "ok":
            self._completion.completed(command.id, target.agent, state.value, done.followers, how.code, command.origin)
        elif done.why == "kept":
            return command.expires + GRACE_MS
        else:
            self._completion.forget(command.id, target.agent)
        return None
