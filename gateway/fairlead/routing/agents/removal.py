"""Takes an agent that left out of the store: what is open for it ends, then its row, labels and facts go.

Called by the API for one agent, and by the sweep of the index for those that were away for `forget_after`. An agent
that is linked is never removed; one that comes back later is a new one, without labels.
"""

from __future__ import annotations

from fairlead.errors import AgentOnline
from fairlead.fleet.command_record import OUTCOME_UNKNOWN, StoredEnd
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory, LastSeen
from fairlead.fleet.schema import AgentRow, Presence, TargetState
from fairlead.routing.commands.completion import Completion
from fairlead.routing.membership.membership import Membership
from fairlead.telemetry.metrics import Metrics

NEVER_SENT = StoredEnd(code="agent_deleted", message="its agent was deleted before the command was sent to it")
"""It did not run."""


class AgentRemoval:
    def __init__(
        self, directory: Directory, records: Commands, completion: Completion, membership: Membership, metrics: Metrics,
        forget_ms: int,
    ) -> None:  # fmt: skip
        """`forget_ms`: how long an agent may be away before it is forgotten, 0 for ever."""
        self._directory = directory
        self._records = records
        self._completion = completion
        self._membership = membership
        self._metrics = metrics
        self._forget_ms = forget_ms

    async def look(self, agent: str, seen: LastSeen) -> None:
        """Remove an agent that was away for too long."""
        now = self._membership.now()
        if self._membership.table.holds(seen.lease, now):
            return
        if seen.lease and seen.at == seen.up:
            # Its node died with it, and nobody noted when: it was last seen at its claim, which may be months ago.
            await self._directory.mark_absent(agent, seen.lease)
        elif self._forget_ms and now - seen.at > self._forget_ms:
            row = await self._directory.look_up(agent)
            if row is not None and (row.lease, row.seen) == (seen.lease, seen.at):
                await self.remove(row)

    async def delete(self, row: AgentRow) -> tuple[int, int]:
        """Remove an agent, with its events; returns how many of its commands were ended, and of its events removed.
        Raises AgentOnline when it is linked, or is so again."""
        presence, _, why = self._membership.table.presence(row, self._membership.now())
        ended = 0 if presence is Presence.ONLINE else await self.remove(row)
        if presence is Presence.ONLINE or ended is None:
            node = f" ({why})" if presence is Presence.ONLINE else ""
            raise AgentOnline(
                f"agent {row.agent!r} is online{node}: stop it, so that it does not connect again, and disconnect it "
                "first (DELETE its session)",
                agent=row.agent,
            )
        return ended, await self._records.remove_events(row.agent)

    async def remove(self, row: AgentRow) -> int | None:
        """Remove an agent that is absent, as `row` says; returns how many commands were open for it, None when it has
        come back meanwhile."""
        opened = await self._directory.open_commands(row.agent)
        for command in opened:
            await self._end(command, row.agent)
        if not await self._directory.forget(row.agent, row.seen + 1, row.lease):
            return None
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
        if done.why == "kept":  # it was sent in this very moment
            state, how = TargetState.FAILED, OUTCOME_UNKNOWN
            done = await self._records.finish(command, agent, state, how)
        if done.why == "ok":
            self._completion.over(command, agent, state.value, done.followers, how.code, found.origin)
        else:
            self._completion.forget(command, agent)
