"""What one fault of runs is: the servers of its Redis, and what is done in the middle of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.runs.run_scene import Lengths, RunScene
from support.valkey.server import PASSWORD, ValkeyServer

SHORT = Lengths(frozen=17.0, trouble=6.0, concurrency=6, first=4)
"""For `make test`, with some tens of agents."""


def full_lengths(agents: int) -> Lengths:
    """For so many simulated agents."""
    return Lengths(frozen=30.0, trouble=8.0, concurrency=min(500, max(2, agents // 8)), first=max(1, agents // 5))


class OneServer:
    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self.url = f"redis://:{PASSWORD}@{server.address}"


@asynccontextmanager
async def one_server(folder: Path) -> AsyncIterator[OneServer]:
    server = ValkeyServer(folder)
    try:
        await server.start()
        yield OneServer(server)
    finally:
        server.stop()


@dataclass(frozen=True)
class RunFault:
    words: str
    play: Callable[[RunScene], Awaitable[None]]
    servers: Callable[[Path], AbstractAsyncContextManager[Any]] = one_server

    @property
    def name(self) -> str:
        return self.play.__name__
