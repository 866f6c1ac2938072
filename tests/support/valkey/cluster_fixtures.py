"""Fixtures that lead tests of other modules to a Redis Cluster. A module that imports them overrides those of
conftest.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from fairlead.store.servers.opening import open_store
from fairlead.store.store import Store

from support.valkey.cluster import Cluster
from support.valkey.kinds import SharedServers


def _started(factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    cluster = Cluster(factory.mktemp("cluster"))
    try:
        asyncio.run(cluster.start())
        yield SharedServers(cluster)
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    yield from _started(tmp_path_factory)


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    """For `own_valkey`: a Cluster takes seconds to start, so it serves one test after the other."""
    yield from _started(tmp_path_factory)


@pytest.fixture
async def own_valkey(own_servers: SharedServers) -> SharedServers:
    """The tests that use it have nodes of their own, which have stopped when the next one begins."""
    await own_servers.flush()
    return own_servers


@pytest.fixture
async def redis_of() -> AsyncIterator[Callable[[SharedServers], Awaitable[Store]]]:
    made: list[Store] = []

    async def look(servers: SharedServers) -> Store:
        store = open_store(servers.url)
        made.append(store)
        store.start()
        assert await store.wait_available(20), store.last_error
        return store

    yield look
    for store in made:
        await store.aclose()
