"""The operator reads the rows of nodes from a Redis with Sentinels and from a Cluster, also while a primary is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.errors import BusUnavailable
from fairlead_operator.inputs.node_metrics import NodeMetricsReader

from support.gateway.process import GatewayProcess
from support.valkey.cluster import Cluster
from support.valkey.replication import Replication
from support.valkey.server import ValkeyServer
from support.waiting import until

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def started(made: Replication | Cluster) -> AsyncIterator[Replication | Cluster]:
    try:
        await made.start()
        yield made
    finally:
        made.stop()


@asynccontextmanager
async def node(folder: Path, url: str) -> AsyncIterator[GatewayProcess]:
    made = GatewayProcess(folder, url)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@pytest.mark.parametrize("kind", ["sentinels", "cluster"])
async def test_rows_of_nodes_are_read_while_a_primary_is_lost(kind: str, tmp_path: Path) -> None:
    made = Replication(tmp_path / "servers") if kind == "sentinels" else Cluster(tmp_path / "servers", replicas=False)
    async with started(made) as servers, node(tmp_path, servers.url):
        reader = NodeMetricsReader(servers.url)
        try:
            before = (await reader.read()).rows["node-1"]
            primary: ValkeyServer = servers.servers[0] if isinstance(servers, Cluster) else await servers.primary()
            primary.signal(signal.SIGSTOP)
            try:
                await until(lambda: _is_newer(reader, before.at))
            finally:
                primary.signal(signal.SIGCONT)
        finally:
            await reader.aclose()


async def _is_newer(reader: NodeMetricsReader, before: int) -> bool:
    """Whether the node's row is that of a later heartbeat."""
    try:
        return (await reader.read()).rows["node-1"].at > before
    except (BusUnavailable, KeyError):
        return False
