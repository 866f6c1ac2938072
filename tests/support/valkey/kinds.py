"""Stands in for the single Valkey of a test, so that the same test plays on another kind of Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from support.valkey.cluster import Cluster
from support.valkey.replication import Replication
from support.valkey.server import ValkeyServer


class SharedServers:
    """All servers of one kind, and the URL that leads to them."""

    def __init__(self, servers: Cluster | Replication) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return self.servers.url

    async def flush(self) -> None:
        """Remove all data, with the scripts, as a test begins with a new Valkey."""
        for server in await self._primaries():
            await server.call("FLUSHALL")
            await server.call("SCRIPT", "FLUSH")

    async def _primaries(self) -> Sequence[ValkeyServer]:
        roles = await asyncio.gather(*(server.info("replication") for server in self.servers.servers))
        return [server for server, role in zip(self.servers.servers, roles, strict=True) if role["role"] == "master"]
