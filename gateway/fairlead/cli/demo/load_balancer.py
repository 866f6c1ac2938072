"""The demo's load balancer: one TCP port for the links of all nodes, as a fleet has one address in production.

Run by `stage`, in the demo's own process. A new connection goes to the node that has the fewest, among those that take
it; so agents whose node has died find another one at the same address. It moves bytes and knows nothing of what they
mean, and it restarts nothing. It is for a demo: real fleets have a load balancer of their own.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Sequence

from fairlead.errors import ConfigError

CONNECT_TIMEOUT = 2.0
"""Seconds for a connection within this machine: a node that does not listen refuses at once."""
PIECE = 1 << 16
"""Bytes read at once; what the other side does not take stops the reading."""
SPARE_FILES = 512
"""Descriptors for everything else that the demo does."""


class LoadBalancer:
    """Connections to `port` of `host` go to `backends`, ports of the same host, from `start` to `stop`."""

    def __init__(self, host: str, port: int, backends: Sequence[int]) -> None:
        self._host = host
        self._port = port
        self._backends = backends
        self._server: asyncio.Server | None = None
        self._connections: Counter[int] = Counter()
        """How many each backend has."""
        self._serving: set[asyncio.Task[None]] = set()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._most = max(1, (hard - SPARE_FILES) // 2)
        """Connections at the same time, each of two descriptors. More are closed at once."""

    async def start(self) -> None:
        """Raises ConfigError when the port cannot be had."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port)
        except OSError as e:
            raise ConfigError(f"port {self._port} on {self._host} cannot be had: {e.strerror}; choose another") from e

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._most:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in sorted(self._backends, key=self._connections.__getitem__):
            self._connections[port] += 1  # before the first wait, so that two that come at once are spread
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    answers, far = await asyncio.open_connection(self._host, port)
            except (OSError, TimeoutError):
                self._connections[port] -= 1  # nobody listens there now
                continue
            try:
                await self._join(reader, far, answers, writer)
            finally:
                self._connections[port] -= 1
            return
        writer.transport.abort()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        far: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Carry bytes both ways until either side is done; what was read by then is still sent."""
        ways = [asyncio.create_task(_carry(reader, far)), asyncio.create_task(_carry(answers, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far.close()
            writer.close()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(PIECE):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass  # one side is gone: so is the connection
