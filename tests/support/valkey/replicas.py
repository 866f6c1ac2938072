"""A primary with replicas and no Sentinels: the test fails over itself, and decides what a replica lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from support.valkey.line import Line
from support.valkey.server import PASSWORD, ValkeyServer
from support.waiting import until


class Replicas:
    """`async with Replicas(folder) as redis:`; nodes use `redis.url`, an address that stays the same.

    Each replica follows the primary over a line of its own, which may be held up.
    """

    def __init__(self, folder: Path, count: int = 1, options: Sequence[str] = (), *, password: str = PASSWORD) -> None:
        self._folder = folder
        self._options = tuple(options)
        self._password = password
        self.primary = self._server(0)
        self.replicas = [self._server(i + 1) for i in range(count)]
        self.lines: dict[int, Line] = {}
        """The line by which each replica follows, by its port."""
        self._stack = AsyncExitStack()

    def _server(self, number: int) -> ValkeyServer:
        folder = self._folder / f"valkey-{number}"
        return ValkeyServer(folder, ("--repl-timeout", "600", *self._options), password=self._password)

    @property
    def url(self) -> str:
        return self.url_at(self.front.port)

    def url_at(self, port: int) -> str:
        """For nodes that reach the primary over another line."""
        return f"redis://:{self._password}@127.0.0.1:{port}" if self._password else f"redis://127.0.0.1:{port}"

    async def __aenter__(self) -> Replicas:
        await asyncio.gather(*(server.start() for server in (self.primary, *self.replicas)))
        self.front = await self._stack.enter_async_context(Line(self.primary.port))
        for replica in self.replicas:
            await self.follow(replica)
        await self.in_step()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        for server in (self.primary, *self.replicas):
            server.stop()

    async def follow(self, replica: ValkeyServer) -> None:
        """Let a server follow the primary of now, over a new line."""
        line = self.lines[replica.port] = await self._stack.enter_async_context(Line(self.primary.port))
        await replica.call("REPLICAOF", "127.0.0.1", line.port)

    async def in_step(self) -> None:
        """Wait until all replicas have all that the primary has."""

        async def same() -> bool:
            return all([await replica.has_all_of(self.primary) for replica in self.replicas])

        await until(same, 60)

    def hold(self) -> None:
        """From now on no replica hears anything new."""
        for line in self.lines.values():
            line.hold()

    def release(self) -> None:
        for line in self.lines.values():
            line.release()

    async def promote(self, replica: ValkeyServer | None = None, *, silent: bool = False) -> ValkeyServer:
        """Make a replica the primary, and lead the nodes to it; `silent`: their connections stay. Returns the old
        primary."""
        new = replica or self.replicas[0]
        self.lines[new.port].cut()
        await new.call("REPLICAOF", "NO", "ONE")
        old, self.primary = self.primary, new
        self.replicas = [server for server in (*self.replicas, old) if server is not new]
        if silent:
            await self.front.lead_to(new.port)
        else:
            self.front.target = new.port
            self.front.cut()
        return old
