"""The store by `redis+cluster://`: with three primaries and three replicas as real processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from redis.crc import key_slot

from fairlead.errors import BusUnavailable, StoreFull
from fairlead.store.backlog import Priority
from fairlead.store.blocking_reader import BlockingReader, Entry
from fairlead.store.errors import StoreError
from fairlead.store.reply import Reply, integer, octets
from fairlead.store.script import Script
from fairlead.store.servers.confirmer import Durability
from fairlead.store.servers.opening import open_store
from fairlead.store.store import Store

from support.valkey.cluster import Cluster
from support.valkey.network import Network
from support.waiting import until

KEYS = ["a", "b", "c", "d", "e", "f", "g", "h"]
"""Keys on all three primaries."""
TWO_KEYS = Script("two_keys", "#!lua\nreturn {redis.call('INCR', KEYS[1]), redis.call('INCR', KEYS[2])}\n")
Open = Callable[[str], Awaitable[Store]]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> object:
    """For tests that harm no server."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def open_cluster() -> AsyncIterator[Open]:
    made: list[Store] = []

    async def make(url: str) -> Store:
        store = open_store(url)
        made.append(store)
        store.start()
        assert await store.wait_available(20), store.last_error
        return store

    yield make
    for store in made:
        await store.aclose()


async def _write(store: Store, key: str) -> bool:
    try:
        return integer(await store.submit("INCR", key)) > 0
    except BusUnavailable:
        return False


async def test_calls_go_to_the_primary_of_their_key(shared_cluster: Cluster, open_cluster: Open) -> None:
    store = await open_cluster(shared_cluster.url)
    assert len(store.primaries()) == 3
    assert all(store.primaries().values())
    await asyncio.gather(*(store.submit("SET", key, key) for key in KEYS))
    owners = {(await shared_cluster.owner(key)).address for key in KEYS}
    assert owners == set(store.primaries())
    assert [await store.submit("GET", key) for key in KEYS] == [key.encode() for key in KEYS]
    assert await store.submit_each([("GET", key) for key in KEYS]) == [key.encode() for key in KEYS]
    pairs = [((f"n{{{key}}}", f"m{{{key}}}"), ()) for key in KEYS]
    assert await store.run_each(TWO_KEYS, pairs) == [[1, 1]] * len(KEYS)
    assert await store.run(TWO_KEYS, *pairs[0]) == [2, 2]
    sizes = {address: integer(await reply) for address, reply in store.submit_to_each("DBSIZE").items()}
    assert sum(sizes.values()) == 3 * len(KEYS)
    assert all(sizes.values())


async def test_each_primary_has_one_connection_of_a_store(shared_cluster: Cluster, open_cluster: Open) -> None:
    store = await open_cluster(shared_cluster.url)
    await asyncio.gather(*(store.submit("SET", key, 1) for key in KEYS * 20))

    async def connections() -> list[str]:
        lists = [octets(await reply).decode() for reply in store.submit_to_each("CLIENT", "LIST").values()]
        return [line for text in lists for line in text.splitlines() if "name=fairlead." in line]

    assert len(await connections()) == 3
    assert "fairlead-discovery" not in "".join(await connections())


async def test_keys_of_two_slots_in_one_call_are_a_defect_and_told_so(
    shared_cluster: Cluster, open_cluster: Open
) -> None:
    store = await open_cluster(shared_cluster.url)
    with pytest.raises(StoreError, match="slot"):
        await store.run(TWO_KEYS, ("a", "b"), ())


async def test_one_server_of_a_cluster_is_not_taken_for_a_redis(shared_cluster: Cluster, open_cluster: Open) -> None:
    server = shared_cluster.servers[0]
    store = await open_cluster(f"redis://:{server.password}@{server.address}")
    with pytest.raises(BusUnavailable, match=r"redis\+cluster"):
        await asyncio.gather(*(store.submit("GET", key) for key in KEYS))


async def test_a_single_redis_is_not_taken_for_a_cluster(tmp_path: Path) -> None:
    from support.valkey.server import ValkeyServer

    server = ValkeyServer(tmp_path)
    await server.start()
    store = open_store(f"redis+cluster://:{server.password}@{server.address}")
    store.start()
    try:
        await until(lambda: "it is no Cluster" in store.last_error.message, 20)
        assert not store.available
    finally:
        await store.aclose()
        server.stop()


class Load:
    """Callers that count by scripts with two keys of one slot, and each time write a key that did not exist."""

    def __init__(self, store: Store, tag: str) -> None:
        self._store, self._tag = store, tag
        self._going = True
        self.acknowledged = 0
        self.failures: list[BusUnavailable] = []
        self._tasks = [asyncio.create_task(self._call(str(i))) for i in range(8)]

    async def _call(self, name: str) -> None:
        count = 0
        while self._going:
            try:
                reply = await self._store.run(TWO_KEYS, (f"x{name}{{{self._tag}}}", f"y{name}{{{self._tag}}}"), ())
            except BusUnavailable as e:
                self.failures.append(e)
                continue
            count += 1
            assert reply == [count, count], "a call was lost or executed twice"
            fresh = f"new{name}-{count}{{{self._tag}}}"
            assert await self._store.submit("SET", fresh, 1, "NX", "PX", 500) == b"OK", "executed twice"
            self.acknowledged += 1
            await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        seen = self.acknowledged
        await until(lambda: self.acknowledged > seen + 50, 30)

    async def end(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)


async def test_slots_that_move_under_load_lose_and_repeat_nothing(shared_cluster: Cluster, open_cluster: Open) -> None:
    """Some keys of a call may have been moved and others not (TRYAGAIN), or all but new ones (ASK)."""
    store = await open_cluster(shared_cluster.url)
    slot, source = key_slot(b"moving"), await shared_cluster.owner("moving")
    target = next(s for s in shared_cluster.servers[:3] if s is not source)
    load = Load(store, "moving")
    for _ in range(4):
        await load.goes_on()
        await shared_cluster.move_slot(slot, source, target)
        source, target = target, source
    await load.goes_on()
    await load.end()
    assert all("was not executed" in failure.message for failure in load.failures)


async def test_answers_are_confirmed_while_their_slot_moves(shared_cluster: Cluster) -> None:
    """Also those of keys that are at the server to which the slot moves (ASK), and after the slot has left."""
    store = open_store(shared_cluster.url, durability=Durability.REPLICATED)
    store.start()
    try:
        assert await store.wait_available(20), store.last_error
        slot, source = key_slot(b"slowly"), await shared_cluster.owner("slowly")
        target = next(s for s in shared_cluster.servers[:3] if s is not source)
        async with asyncio.timeout(60):
            await until(lambda: _write(store, "old{slowly}"), 30)
            await target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", await source.id())
            await source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", await target.id())
            await until(lambda: _write(store, "new{slowly}"), 30)
            await until(lambda: _write(store, "old{slowly}"), 30)
            before = store.confirmations[0]
            await store.submit("SET", "another{slowly}", 1, priority=Priority.BACKGROUND, told=True)
            assert store.confirmations[0] == before + 1, "what is told is confirmed there, too"
            await shared_cluster.move_slot(slot, source, target)
            await until(lambda: _write(store, "new{slowly}"), 30)
            assert int(octets(await store.submit("GET", "old{slowly}"))) >= 2
            assert store.unconfirmed == ""
    finally:
        await store.aclose()


async def test_what_must_fit_is_written_to_a_full_server_while_its_slot_moves_there(
    shared_cluster: Cluster, open_cluster: Open
) -> None:
    store = await open_cluster(shared_cluster.url)
    slot, source = key_slot(b"full"), await shared_cluster.owner("full")
    target = next(s for s in shared_cluster.servers[:3] if s is not source)
    await target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", await source.id())
    await source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", await target.id())
    await target.call("CONFIG", "SET", "maxmemory", 1)
    try:
        assert not store.low_memory
        assert await store.write("SET", "new{full}", "doorbell") == b"OK"
        with pytest.raises(StoreFull):
            await store.submit("SET", "new{full}", "command")
        assert await store.submit("GET", "new{full}") == b"doorbell"
    finally:
        await target.call("CONFIG", "SET", "maxmemory", 0)
        await shared_cluster.move_slot(slot, source, target)


async def test_a_slot_that_moves_at_once_is_not_noticed(shared_cluster: Cluster, open_cluster: Open) -> None:
    store = await open_cluster(shared_cluster.url)
    slot, source = key_slot(b"at once"), await shared_cluster.owner("at once")
    target = next(s for s in shared_cluster.servers[:3] if s is not source)
    load = Load(store, "at once")
    for _ in range(4):
        await load.goes_on()
        await shared_cluster.move_slot_at_once(slot, source, target)
        source, target = target, source
    await load.goes_on()
    await load.end()
    assert load.failures == []


async def test_a_blocking_read_follows_its_slot(shared_cluster: Cluster, open_cluster: Open) -> None:
    store = await open_cluster(shared_cluster.url)
    received: list[Entry] = []
    key = "stream{read}"
    reader = BlockingReader(store.endpoint(key, "reader"), key, received.extend)
    reader.start()
    await store.submit("XADD", key, "1-1", "d", "before")
    await until(lambda: len(received) == 1)
    source = await shared_cluster.owner(key)
    target = next(s for s in shared_cluster.servers[:3] if s is not source)
    await shared_cluster.move_slot(key_slot(b"read"), source, target)
    await store.submit("XADD", key, "2-1", "d", "after")
    await until(lambda: len(received) == 2, 30)
    assert received[1].fields == {b"d": b"after"}
    await reader.aclose()


async def test_a_killed_primary_costs_only_its_own_keys_and_its_replica_takes_over(
    cluster: Cluster, open_cluster: Open
) -> None:
    store = await open_cluster(cluster.url)
    connected: list[set[str]] = []
    store.on_connect = lambda _: connected.append(set(store.primaries()))
    await asyncio.gather(*(store.submit("SET", key, 0) for key in KEYS))
    gone = await cluster.owner("a")
    survivors = [key for key in KEYS if await cluster.owner(key) is not gone]
    assert len(survivors) < len(KEYS)
    pairs = tuple(zip(cluster.servers[:3], cluster.servers[3:], strict=True))
    await asyncio.gather(*(until(partial(replica.has_all_of, primary)) for primary, replica in pairs))
    gone.kill()

    failed: list[BusUnavailable] = []
    async with asyncio.timeout(60):
        while not await _write(store, "a"):
            failed.append(store.last_error)
            assert await store.submit_each([("EXISTS", key) for key in survivors]) == [1] * len(survivors)
            assert all([await _write(store, key) for key in survivors])
            assert store.available
            await asyncio.sleep(0.02)
    assert failed
    assert gone.address in failed[-1].message or gone.address in failed[0].message
    assert gone.address not in store.primaries()
    assert set(store.primaries()) in connected, "told when the new primary is one that calls go to"
    assert await store.submit("GET", "a") == b"1"


async def test_a_primary_that_was_cut_off_from_the_others_is_left_for_its_replica(
    tmp_path: Path, open_cluster: Open
) -> None:
    """It is reached all the time, and says who had which slots before."""
    async with Network() as network:
        cluster = Cluster(tmp_path, network=network)
        try:
            await cluster.start()
            store = await open_cluster(cluster.url)
            key = next(key for key in KEYS if store.owner(key) == cluster.servers[0].address)
            before, after = cluster.servers[0], cluster.servers[3]
            network.separate(before, cluster.servers)

            async def moved() -> bool:
                return await _write(store, key) and store.owner(key) == after.address

            await until(moved, 60)
            assert (await before.info("replication"))["role"] == "master", "nobody has told it"
        finally:
            cluster.stop()


async def test_a_shard_that_is_away_is_named_and_the_others_go_on(tmp_path: Path, open_cluster: Open) -> None:
    cluster = Cluster(tmp_path, replicas=False)
    try:
        await cluster.start()
        store = await open_cluster(cluster.url)
        gone = await cluster.owner("a")
        others = [key for key in KEYS if await cluster.owner(key) is not gone]
        gone.signal(signal.SIGSTOP)
        with pytest.raises(BusUnavailable, match=gone.address):
            await store.submit("INCR", "a")
        assert store.available
        assert store.partly_away
        assert store.primaries()[gone.address] is False
        mixed: list[Reply | Exception] = list(await store.submit_each([("INCR", key) for key in ["a", *others]]))
        assert isinstance(mixed[0], BusUnavailable)
        assert mixed[1:] == [1] * len(others)
        with pytest.raises(BusUnavailable, match=gone.address):
            await store.submit_each([("INCR", "a"), ("INCR", "x{a}")])
        gone.signal(signal.SIGCONT)
        await until(lambda: _write(store, "a"), 30)
        await until(lambda: not store.partly_away, 30)
    finally:
        cluster.stop()
