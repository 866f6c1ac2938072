"""A TCP proxy in front of the nodes' link ports and of a Valkey, with which a scenario can cut connections.

Each connection goes to a random backend that accepts it, or to that with the fewest connections. `cut` ends
connections, as if a cable near the gateway was pulled; `stall` keeps them open and forwards nothing more, like a
firewall that has forgotten them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable

CONNECT = 2.0


class BalancedConnection:
    """One connection through the balancer."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.stalled = False

    def cut(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class Balancer:
    def __init__(self, backends: Callable[[], Iterable[int]], rng: random.Random, *, fewest: bool = False) -> None:
        """`backends` gives the ports that may be tried now. With `fewest`, the one with the fewest connections is tried
        first, otherwise a random one."""
        self._fewest = fewest
        self._dialled: Counter[int] = Counter()
        """Connections to each backend, including those that are being opened."""
        self._backends = backends
        self._rng = rng
        self._server: asyncio.Server | None = None
        self.pipes: set[BalancedConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0
        self.stalled = False
        """New connections carry nothing either."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for pipe in tuple(self.pipes):
            pipe.cut()
        if self._serving:
            await asyncio.wait(self._serving, timeout=5)
        await self._server.wait_closed()

    def cut(self, share: float = 1.0) -> int:
        """End a share of the connections, both ways at once; returns how many."""
        chosen = [pipe for pipe in self.pipes if self._rng.random() < share]
        for pipe in chosen:
            pipe.cut()
        return len(chosen)

    def stall(self, share: float) -> int:
        """Forward nothing more on a share of the connections; both ends believe that they are open."""
        chosen = [pipe for pipe in self.pipes if self._rng.random() < share]
        for pipe in chosen:
            pipe.stalled = True
        return len(chosen)

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._serve(reader, near)
        finally:
            self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        ports = list(self._backends())
        self._rng.shuffle(ports)
        if self._fewest:
            ports.sort(key=self._dialled.__getitem__)
        for port in ports:
            self._dialled[port] += 1
            try:
                async with asyncio.timeout(CONNECT):
                    back, far = await asyncio.open_connection("127.0.0.1", port)
                break
            except (OSError, TimeoutError):
                self._dialled[port] -= 1
        else:
            near.transport.abort()
            return
        pipe = BalancedConnection(near, far)
        pipe.stalled = self.stalled
        self.pipes.add(pipe)
        try:
            await asyncio.gather(self._pump(pipe, reader, far), self._pump(pipe, back, near))
        finally:
            self.pipes.discard(pipe)
            self._dialled[port] -= 1
            pipe.cut()

    async def _pump(self, pipe: BalancedConnection, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if pipe.stalled:
                    continue
                sink.write(data)
                await sink.drain()
        except (OSError, RuntimeError):
            pass
        # Either end that is over ends both, after what was under way.
        if not pipe.stalled:
            sink.close()
