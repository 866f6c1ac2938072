"""One real server and one loop on which every history calls it, and the limits they share.

Called by test_model.py and history.py. One server serves all histories, since each names its agents and commands
after its own number. The one-node cluster refuses keys of two hash tags in one call, which a single server lets pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Arg, Reply, integer, items, octets

from support.free_ports import free_port

T = TypeVar("T")

OPEN_LIMIT = 4
OUTPUT_LIMIT = 100
INPUT_LIMIT = 50
"""Small, so that short histories meet them."""
FAR_MS = 3600_000
RETENTION_MS = 600_000


class ScriptServer:
    """One server, and one loop on which every history calls it."""

    def __init__(self, folder: Path, *, cluster: bool) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        options: tuple[str, ...] = ()
        if cluster:
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        self._server = EmbeddedValkey(folder, port=0 if cluster else None, options=options)  # a cluster speaks TCP
        self.names = count()
        self.run(self._start(cluster))

    async def _start(self, cluster: bool) -> None:
        await self._server.start()
        self.store = Pipeliner(self._server.url, batch_timeout=30)  # on a busy machine a history goes on, only slower
        self.store.start()
        assert await self.store.wait_available(10), self.store.last_error
        if cluster:
            await self.store.submit("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            async with asyncio.timeout(10):
                while b"cluster_state:ok" not in octets(await self.store.submit("CLUSTER", "INFO")):
                    await asyncio.sleep(0.02)

    async def time(self) -> int:
        """Redis TIME in ms."""
        seconds, micros = items(await self.store.submit("TIME"))
        return integer(seconds) * 1000 + integer(micros) // 1000

    def run(self, coroutine: Awaitable[T]) -> T:
        async def wait() -> T:
            return await coroutine

        return self._loop.run_until_complete(wait())

    def call(self, method: Callable[[], Awaitable[T]]) -> T:
        """Calls are made on the loop, not only awaited there."""

        async def made() -> T:
            return await method()

        return self._loop.run_until_complete(made())

    def submit(self, *args: Arg) -> Reply:
        """One plain command."""
        return self.call(lambda: self.store.submit(*args))

    def close(self) -> None:
        self.run(self.store.aclose())
        self.run(self._server.stop())
        self._loop.close()
