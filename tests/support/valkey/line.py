"""A TCP line to a server, which a test holds up, cuts, or leads to another server with or without cutting it."""

from __future__ import annotations

import asyncio
from types import TracebackType


class _Wire:
    """One connection of a client. `far` is the server's end at present."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.near = near
        self.far: asyncio.StreamWriter | None = None
        self.back: asyncio.Task[None] | None = None

    def cut(self) -> None:
        for writer in (self.near, self.far):
            if writer is not None:
                writer.transport.abort()


class Line:
    """`async with Line(port) as line:` leads connections to `line.port` to that port of the loopback interface."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        """Seconds by which everything is delayed on its way to the server."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._wires: set[_Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        self._flowing.set()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """Carry nothing more in either direction, and keep it."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """End all connections."""
        for wire in tuple(self._wires):
            wire.cut()

    async def lead_to(self, target: int) -> None:
        """Lead all connections to another server. Clients keep theirs, and lose what was under way."""
        self.target = target
        for wire in tuple(self._wires):
            before, back = wire.far, wire.back
            await self._connect(wire)
            if back is not None:
                back.cancel()
            if before is not None:
                before.transport.abort()

    async def _connect(self, wire: _Wire) -> None:
        reader, wire.far = await asyncio.open_connection("127.0.0.1", self.target)
        wire.back = asyncio.create_task(self._carry_back(reader, wire))
        self._keep(wire.back)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        wire = _Wire(near)
        self._wires.add(wire)
        try:
            await self._connect(wire)
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                assert wire.far is not None
                wire.far.write(data)
                await wire.far.drain()
        except (OSError, RuntimeError):  # uvloop raises the latter for a connection that was cut
            pass
        finally:
            self._wires.discard(wire)
            wire.cut()

    async def _carry_back(self, reader: asyncio.StreamReader, wire: _Wire) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                wire.near.write(data)
                await wire.near.drain()
        except (OSError, RuntimeError):
            pass
        wire.near.transport.abort()
