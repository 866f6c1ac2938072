"""Becoming the owner of an agent's open commands: fenced first, taken up on the link afterwards.

Used by attendance before a welcome and by the reconciler after a claim was made again. From the fence on, what an
older owner still wants to append is refused; only then is anything written to the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.fleet.command_record import Settled, TakenOver
from fairlead.fleet.commands import Commands
from fairlead.hub.session import Session
from fairlead.routing.delivery.command_delivery import CommandDelivery
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.store.answer import Answer, map_bounded

AT_ONCE = 16
"""Commands of one agent that are fenced at once: of many agents that come back together, each gets on."""


class Takeover:
    def __init__(self, records: Commands, deliveries: CommandDelivery, telemetry: TelemetryRecorder) -> None:
        self._records = records
        self._deliveries = deliveries
        self._telemetry = telemetry

    async def fence(self, session: Session, commands: Sequence[str]) -> dict[str, TakenOver]:
        """Own `commands` from the session's generation on; returns those that go on."""

        def fence(command: str) -> Answer[TakenOver | Settled]:
            return self._records.take_over(command, session.agent, session.gen, session.memory)

        taken: dict[str, TakenOver] = {}
        async for command, found in map_bounded(fence, commands, AT_ONCE):
            if isinstance(found, TakenOver):
                taken[command] = found
            else:
                self._deliveries.settled(session.agent, command, found)
        return taken

    def take_up(self, session: Session, taken: Mapping[str, TakenOver], have: Mapping[str, int]) -> None:
        """Open the streams that the agent may know, and deliver what it has not acked.

        `have`: the input chunk that it expects next, by command.
        """
        for command, found in taken.items():
            if not found.queued and session.link.stream(command) is None:
                session.begin(command, found.next, have.get(command, 0))
                if found.running:
                    self._telemetry.taken_up(session, command)
                    self._deliveries.carry_on(session, command, found.cancelled, found.has_input)
        self._deliveries.deliver(
            session, [command for command, found in taken.items() if not found.running], waited=True
        )
