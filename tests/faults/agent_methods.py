"""The methods of the harness's agents, and one agent as a process of its own that keeps a journal.

`register_methods` is called for the agents in the harness's process, and by `main` here. A process writes what it does
to files before it sends any result, so that its death hides nothing:

    python -m faults.agent_methods URL NAME FOLDER
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from fairlead.agent import Agent, Command

from support.ledger import line

TOKEN = "development-agent-token"
PERIOD = 1.0
"""Seconds between the events of one agent."""


async def at_once() -> None:
    """Nothing holds a step up."""


def register_methods(
    agent: Agent, record: Callable[[str], None], may_end: Callable[[], Awaitable[object]] = at_once
) -> None:
    """Give the agent its methods. `record` gets the key of each execution. A `step`, which is what runs run, ends once
    `may_end` has."""

    @agent.command("work")
    async def work(command: Command, key: str, count: int, width: int, pause: float) -> AsyncIterator[str]:
        record(key)
        for n in range(count):
            yield line(key, n, width)
            await asyncio.sleep(pause)

    @agent.command("echo")
    async def echo(command: Command, key: str) -> AsyncIterator[bytes]:
        record(key)
        async for data in command.stdin:
            yield data

    @agent.command("step")
    async def step(key: str) -> AsyncIterator[str]:
        record(f"{key} {agent.id}")
        yield "begun\n"
        await may_end()
        yield "done\n"

    @agent.command("flood")
    async def flood(count: int) -> AsyncIterator[bytes]:
        for _ in range(16 * count):
            yield b"x" * 65_536


async def emit_events(agent: Agent, life: str, record: Callable[[str], None]) -> None:
    """Emit an event each second, for as long as the agent serves; `record` gets what was accepted for sending."""
    n = 0
    while True:
        await asyncio.sleep(PERIOD)
        event = f"{agent.id} {life} {n}"
        agent.emit("emitted", event)
        record(event)
        n += 1


async def serve(url: str, name: str, folder: Path) -> None:
    agent = Agent(url, id=name, token=TOKEN, journal=folder / "journal")
    runs = os.open(folder / "runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    emitted = os.open(folder / "emitted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    register_methods(agent, lambda key: _write(runs, key))
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.serve())
        group.create_task(emit_events(agent, str(os.getpid()), lambda event: _write(emitted, event)))


def _write(file: int, word: str) -> None:
    os.write(file, f"{word}\n".encode())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
