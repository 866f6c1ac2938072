"""The methods that the tests of delivery run: each counts its starts, and goes on when the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fairlead.agent import Agent, Command

SIZE = 10_000


class Script:
    """The methods of these tests. `go` lets `steps` take its next step, `runs` counts the starts of each method."""

    def __init__(self, agent: Agent) -> None:
        self.go = asyncio.Semaphore(0)
        self.runs: list[str] = []
        self.cleaned: list[str] = []
        agent.command("steps")(self.steps)
        agent.command("flood")(self.flood)
        agent.command("once")(self.once)
        agent.command("echo")(self.echo)
        agent.command("slow-reader")(self.slow_reader)

    async def steps(self, command: Command, count: int) -> AsyncIterator[str]:
        self.runs.append(command.id)
        try:
            for n in range(count):
                await self.go.acquire()
                yield f"{n}\n"
        finally:
            self.cleaned.append(command.id)

    async def flood(self, command: Command, chunks: int) -> int:
        """Chunks that differ, as fast as the credit lets it."""
        self.runs.append(command.id)
        for n in range(chunks):
            await command.write("stdout", f"{n:08d}".encode() * (SIZE // 8))
        return chunks

    async def once(self, command: Command) -> int:
        self.runs.append(command.id)
        return len(self.runs)

    async def echo(self, command: Command) -> AsyncIterator[bytes]:
        self.runs.append(command.id)
        async for data in command.stdin:
            yield data

    async def slow_reader(self, command: Command) -> AsyncIterator[bytes]:
        async for data in command.stdin:
            await self.go.acquire()
            yield data

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.go.release()
