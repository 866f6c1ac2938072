"""Removes an agent that has left: ends its open commands, and then deletes its row, labels and facts from Redis.

The API calls it for one agent, the index sweeper for agents that were absent for `forget_after`. A linked agent is
never removed. An agent that comes back later is a new one, without labels.
"""

from __future__ import annotations

from fairlead.errors import AgentOnline
from fairlead.fleet.command_record import OUTCOME_UNKNOWN, StoredEnd
from fairlead.fleet.directory_replies import LastSeen
from fairlead.fleet.node_table import Presence
from fairlead.fleet.schema import AgentRow, TargetState, agent_key
from fairlead.routing.commands.completion import Completion
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.telemetry.metrics import Metrics
from fairlead.tenant import local_id

NEVER_SENT = StoredEnd(code="agent_deleted", message="its agent was deleted before the command was sent to it")
"""The end of a command that did not run."""


class AgentRemoval:
    def __init__(
        self, fleet: FleetStore, completion: Completion, membership: Membership, metrics: Metrics, forget_ms: int,
    ) -> None:  # fmt: skip
        """`forget_ms` is how long an agent may be absent before it is removed; with 0 it never is."""
        self._directory = fleet.directory
        self._records = fleet.records
        self._gate = fleet.gate
        self._events = fleet.events
        self._tenants = fleet.tenants
        self._completion = completion
        self._membership = membership
        self._metrics = metrics
        self._forget_ms = forget_ms

    async def remove_if_expired(self, agent: str, seen: LastSeen) -> None:
        """Remove an agent that was absent for too long."""
        now = self._membership.now()
        if self._membership.table.holds(seen.lease, now):
            return
        if seen.lease and seen.at == seen.up:
            # Its node died, so when it left was not recorded: it was last seen at its claim, which may be months ago.
            await self._directory.mark_absent(agent, seen.lease)
        elif self._forget_ms and now - seen.at > self._forget_ms:
            row = await self._directory.look_up(agent)
            if row is not None and (row.lease, row.seen) == (seen.lease, seen.at):
                await self.remove(row)

    async def delete(self, row: AgentRow) -> tuple[int, int]:
        """Remove an agent and its events. Returns how many of its commands were ended, and how many events removed.
        Raises AgentOnline if it is linked."""
        presence, _, why = self._membership.table.presence(row, self._membership.now())
        ended = 0 if presence is Presence.ONLINE else await self.remove(row)
        if presence is Presence.ONLINE or ended is None:
            node = f" ({why})" if presence is Presence.ONLINE else ""
            raise AgentOnline(
                f"agent {local_id(row.agent)!r} is online{node}: stop it, so that it does not connect again, and "
                "disconnect it first (DELETE its link)",
                agent=local_id(row.agent),
            )
        return ended, await self._events.remove(row.agent)

    async def remove(self, row: AgentRow) -> int | None:
        """Remove the absent agent of `row`. Returns how many commands it had open, or None if it has come back."""
        # A record that has gone back to `queued` must not end as never sent.
        await self._gate.wait_settled_for(agent_key(row.agent))
        opened = await self._directory.open_commands(row.agent)
        for command in opened:
            await self._end(command, row.agent)
        if not await self._directory.forget(row.agent, row.seen + 1, row.lease):
            return None
        self._tenants.agent_removed(row.agent)
        self._metrics.forgotten.inc()
        return len(opened)

    async def _end(self, command: str, agent: str) -> None:
        found = await self._records.look_up(command)
        target = next((t for t in found.targets if t.agent == agent), None) if found is not None else None
        if found is None or target is None or target.state.over:
            self._completion.forget(command, agent)
            return
        state, how = TargetState.CANCELLED, NEVER_SENT
        only_from: TargetState | None = TargetState.QUEUED
        if target.state is not TargetState.QUEUED or target.attempt:
            state, how, only_from = TargetState.FAILED, OUTCOME_UNKNOWN, None
        done = await self._records.finish(command, agent, state, how, only_from)
        if done.why == "kept":  # it was sent at this very moment
            state, how = TargetState.FAILED, OUTCOME_UNKNOWN
            done = await self._records.finish(command, agent, state, how)
        if done.why == "ok":
            self._completion.completed(command, agent, state.value, done.followers, how.code, found.origin)
        else:
            self._completion.forget(command, agent)
