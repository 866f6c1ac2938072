"""The demo's load balancer: one TCP port for the links of all nodes, as a fleet in production has one address.

Used by `demo`, in the demo's own process. A new connection goes to the node that has the fewest, among those that
accept it, so agents whose node has died find another one at the same address. It copies bytes without interpreting
them. It is for the demo only: a real fleet has a load balancer of its own.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Sequence

from fairlead.errors import ConfigError

CONNECT_TIMEOUT = 2.0
"""Seconds for a connection within this machine: a node that does not listen refuses at once."""
READ_SIZE = 1 << 16
"""Bytes that are read at once; reading stops while the other side does not take them."""
SPARE_FILES = 512
"""File descriptors for everything else that the demo does."""


class LoadBalancer:
    """Forwards connections from `port` on `host` to `backends`, which are ports on the same host."""

    def __init__(self, host: str, port: int, backends: Sequence[int]) -> None:
        self._host = host
        self._port = port
        self._backends = backends
        self._server: asyncio.Server | None = None
        self._connections: Counter[int] = Counter()
        """The number of connections to each backend."""
        self._tasks: set[asyncio.Task[None]] = set()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._limit = max(1, (hard - SPARE_FILES) // 2)
        """Maximum number of connections, each with two file descriptors. Further ones are closed at once."""

    async def start(self) -> None:
        """Raises ConfigError if the port is in use."""
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port)
        except OSError as e:
            raise ConfigError(f"cannot use port {self._port} on {self._host}: {e.strerror}; choose another") from e

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._limit:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in sorted(self._backends, key=self._connections.__getitem__):
            # Before the first await, so that simultaneous connections go to different nodes.
            self._connections[port] += 1
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    backend = await asyncio.open_connection(self._host, port)
            except (OSError, TimeoutError):
                self._connections[port] -= 1  # nobody listens there now
                continue
            try:
                await _join((reader, writer), backend)
            finally:
                self._connections[port] -= 1
            return
        writer.transport.abort()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(client: Stream, backend: Stream) -> None:
    """Copy bytes both ways until either side ends; what was read by then is still sent."""
    copies = [asyncio.create_task(_copy(client[0], backend[1])), asyncio.create_task(_copy(backend[0], client[1]))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        backend[1].close()
        client[1].close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(READ_SIZE):
            target.write(data)
            await target.drain()
    except OSError:
        pass  # one side is gone, and with it the connection
