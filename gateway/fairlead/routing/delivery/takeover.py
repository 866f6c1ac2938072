"""Makes a link the owner of its agent's open commands: it fences them first, and resumes them on the link afterwards.

Registration calls it before welcome, and the reconciler after it has claimed an agent again. From the fence on, Redis
refuses what an earlier owner still appends; only then is anything written to the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.fleet.command_record import Settled, TakenOver
from fairlead.fleet.schema import agent_key
from fairlead.hub.session import Session
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.store.answer import Answer, map_bounded

FENCES_AT_ONCE = 16
"""Commands of one agent that are fenced at a time, so that agents that come back together do not delay one another."""


class Takeover:
    def __init__(self, fleet: FleetStore, delivery: CommandDelivery, telemetry: TelemetryRecorder) -> None:
        self._records = fleet.records
        self._gate = fleet.gate
        self._delivery = delivery
        self._telemetry = telemetry

    async def fence(self, session: Session, commands: Sequence[str]) -> dict[str, TakenOver]:
        """Make the session the owner of `commands`, from its generation on. Returns those that are not over. Raises
        BusUnavailable."""
        if commands:
            # A record that has gone back to `queued` must not end as expired.
            await self._gate.wait_settled_for(agent_key(session.agent))
        known = session.identity

        def fence(command: str) -> Answer[TakenOver | Settled]:
            return self._records.take_over(command, session.agent, known.gen, known.memory)

        taken: dict[str, TakenOver] = {}
        async for command, found in map_bounded(fence, commands, FENCES_AT_ONCE):
            if isinstance(found, TakenOver):
                taken[command] = found
            else:
                self._delivery.nothing_to_deliver(session.agent, command, found)
        return taken

    def pass_on(self, session: Session, current: Session) -> None:
        """Pass the commands that waited for the welcome of `session`, which does not come, to `current`, the agent's
        session on this node."""
        if session is not current and session.deliveries:
            self._delivery.deliver(current, tuple(session.deliveries))

    def resume(self, session: Session, taken: Mapping[str, TakenOver], have: Mapping[str, int]) -> None:
        """Open the streams that the agent may know, and deliver the commands that it has not acknowledged.

        `have` is the number of the next input chunk that the agent expects, by command.
        """
        for command, found in taken.items():
            if not found.queued and session.stream(command) is None:
                session.open_stream(command, found.next, have.get(command, 0))
                if found.running:
                    self._telemetry.command_taken_over(session, command)
                    self._delivery.resume(session, command, found.cancelled, found.has_input)
        self._delivery.deliver(
            session, [command for command, found in taken.items() if not found.running], gives_way=True
        )
