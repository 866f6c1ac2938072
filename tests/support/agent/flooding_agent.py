"""An agent with a journal, in the test's own process, whose handlers write far more than the journal takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from fairlead.agent import Agent, Command
from fairlead.agent.journal.journal import LEAST_LIMIT

from support.agent.scripted_gateway import Gateway


class Floods:
    """Handlers that write far more than the journal takes."""

    SIZE = 1 << 20

    def __init__(self, agent: Agent) -> None:
        agent.command("flood")(self.flood)
        agent.command("nothing")(self.nothing)

    async def flood(self, command: Command, size: int = SIZE) -> AsyncIterator[bytes]:
        for n in range(size >> 16):
            yield n.to_bytes(4, "big") * (1 << 14)

    async def nothing(self) -> None:
        pass


def durable(gateway: Gateway, folder: Path, limit: int = LEAST_LIMIT) -> Agent:
    agent = Agent(gateway.url, "edge-1", "token-1", journal=folder, journal_limit=limit)
    Floods(agent)
    return agent
