"""The network between the servers of a Redis and all who connect to them, made of TCP lines in this process. Plays use
one in a process of its own (see `network_process`).

Servers announce the ports of their lines, so that nodes, replicas, Sentinels and the other servers of a Cluster use
them. Each server connects to others from an address of its own (127.0.1.1, 127.0.1.2 and so on), by which a line tells
who connects. A partition is a line that holds what it carries: connections stay open, and everything that was under way
arrives once the partition is over, as TCP does it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

from support.free_ports import free_port

CLIENTS = "127.0.0.1"
"""The address from which nodes connect, and whoever else has none of its own."""
QUEUE = 1_024
"""Pieces of at most 64 KiB that a line holds for one direction of a connection; the rest waits in the kernel."""


class NetworkServer(Protocol):
    """A server of a network."""

    host: str
    """The address from which it connects to others."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Those at which others connect."""


class _Wire:
    """One connection through a line."""

    def __init__(self, source: str, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.source = source
        self.near = near
        self.far = far

    def cut(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class NetworkLine:
    """The way to one port of one server."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds by which each piece is delayed on its way to the server, also when its sender has left."""
        self._flows: dict[str, asyncio.Event] = {}
        self._wires: set[_Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def delay_by(self, least: float, most: float) -> None:
        """Delay each piece on its way to the server by a random time between these seconds."""
        self.delay = lambda: random.uniform(least, most)

    def hold(self, source: str) -> None:
        """Carry nothing more between the server and this source, and keep it."""
        self._flow(source).clear()

    def release(self, source: str) -> None:
        self._flow(source).set()

    def release_all(self) -> None:
        for flow in self._flows.values():
            flow.set()

    def cut(self) -> None:
        """End all connections, and lose what is held."""
        for wire in tuple(self._wires):
            wire.cut()

    def _flow(self, source: str) -> asyncio.Event:
        if source not in self._flows:
            self._flows[source] = asyncio.Event()
            self._flows[source].set()
        return self._flows[source]

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        source = str((near.get_extra_info("peername") or [CLIENTS])[0])  # who has left again has none
        wire = None
        try:
            await self._flow(source).wait()  # who connects during a partition waits for its end
            back, far = await asyncio.open_connection("127.0.0.1", self._target)
            wire = _Wire(source, near, far)
            self._wires.add(wire)
            await asyncio.gather(
                self._carry(reader, far, source, delayed=True), self._carry(back, near, source, delayed=False)
            )
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, or the network ends
        finally:
            self._tasks.discard(task)
            near.transport.abort()
            if wire is not None:
                self._wires.discard(wire)
                wire.cut()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, *, delayed: bool
    ) -> None:
        """Carry one direction to its end."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE)
        delivering = asyncio.create_task(self._deliver(pieces, writer, source))
        clock = asyncio.get_running_loop().time
        try:
            data = b"-"
            while data:
                try:
                    data = await reader.read(1 << 16)
                except OSError:
                    data = b""
                await pieces.put((clock() + (self.delay() if delayed else 0.0), data))
            await delivering
        finally:
            delivering.cancel()

    async def _deliver(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, source: str
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await pieces.get()
            if (ahead := due - clock()) > 0:
                await asyncio.sleep(ahead)
            await self._flow(source).wait()
            try:
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
            except (OSError, RuntimeError):
                if not data:
                    return  # whoever it was for has left; what comes after is read and lost


class Network:
    """`async with Network() as network:`, made before its servers, which ask it for the ports that they announce."""

    def __init__(self) -> None:
        self._lines: dict[int, NetworkLine] = {}
        self._hosts = 0

    def new_host(self) -> str:
        """An address of its own for the connections of one server."""
        self._hosts += 1
        return f"127.0.1.{self._hosts}"

    def line(self, port: int) -> NetworkLine:
        """The line to a port, which is made at the first call."""
        if port not in self._lines:
            self._lines[port] = self._new_line(port)
        return self._lines[port]

    def _new_line(self, port: int) -> NetworkLine:
        return NetworkLine(port)

    async def __aenter__(self) -> Network:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(line.stop() for line in self._lines.values()))

    async def start(self) -> None:
        """Open all lines that were asked for."""
        await asyncio.gather(*(line.start() for line in self._lines.values()))

    def separate(self, server: NetworkServer, others: Iterable[NetworkServer], *, clients: bool = False) -> None:
        """Carry nothing more between a server and the others, in either direction; with `clients`, also between the
        server and the nodes."""
        for other in others:
            if other is not server:
                self._hold(server.ports, other.host)
                self._hold(other.ports, server.host)
        if clients:
            self._hold(server.ports, CLIENTS)

    def _hold(self, ports: Iterable[int], source: str) -> None:
        for port in ports:
            self._lines[port].hold(source)

    def release(self) -> None:
        """End all partitions."""
        for line in self._lines.values():
            line.release_all()

    def cut(self, server: NetworkServer) -> None:
        """End all connections to a server, and lose what is held on them."""
        for port in server.ports:
            self._lines[port].cut()
