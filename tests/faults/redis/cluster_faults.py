"""Faults of a Redis Cluster of three primaries, with a replica each, or without. Everybody reaches the servers over
lines of a network."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from redis.crc import key_slot

from fairlead.fleet import schema
from fairlead.shards import SHARDS

from faults.redis.played_fleet import answering
from faults.redis.redis_fault import RedisFault, Scene
from faults.redis.sentinel_faults import LAG, TAKEOVER, is_replica, never_used_again
from support.valkey.cluster import Cluster, ClusterServer
from support.valkey.network_process import NetworkProcess
from support.waiting import until


@asynccontextmanager
async def _cluster(folder: Path, *, replicas: bool) -> AsyncIterator[Cluster]:
    async with NetworkProcess() as network:
        cluster = Cluster(folder, replicas=replicas, network=network)
        try:
            await cluster.start()
            yield cluster
        finally:
            cluster.stop()


@asynccontextmanager
async def with_replicas(folder: Path) -> AsyncIterator[Cluster]:
    async with _cluster(folder, replicas=True) as cluster:
        yield cluster


@asynccontextmanager
async def without_replicas(folder: Path) -> AsyncIterator[Cluster]:
    async with _cluster(folder, replicas=False) as cluster:
        yield cluster


def pair(scene: Scene, number: int = 0) -> tuple[ClusterServer, ClusterServer]:
    """A primary and its replica, as they were at the start."""
    servers = scene.servers.servers
    return servers[number], servers[number + 3]


# The ids of the fleet's agents lead to the first and the third primary.


async def agents_of(scene: Scene, *primaries: ClusterServer) -> set[str]:
    found = {name: await scene.servers.owner(schema.agent_key(name)) for name in scene.fleet.names}
    return {name for name, owner in found.items() if owner in primaries}


async def taken_over(scene: Scene, before: ClusterServer, after: ClusterServer) -> None:
    def replaced() -> bool:
        primaries = scene.fleet.store.primaries()
        return after.address in primaries and before.address not in primaries

    await until(replaced, TAKEOVER)


async def killed(scene: Scene) -> None:
    """And started again: with `replicated`, nothing is told of its shard until there is a replica again."""
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    before.kill()
    await taken_over(scene, before, after)
    await _come_back(scene, before, after)


async def _come_back(scene: Scene, before: ClusterServer, after: ClusterServer) -> None:
    """Start a primary again, which is a replica now."""
    await before.start()
    await until(lambda: _follows(before, after), TAKEOVER)
    await answering(scene.fleet)


async def frozen_and_woken(scene: Scene) -> None:
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    began = time.monotonic()
    before.signal(signal.SIGSTOP)
    await taken_over(scene, before, after)
    await answering(scene.fleet)
    await asyncio.sleep(max(0.0, began + scene.lengths.frozen - time.monotonic()))
    before.signal(signal.SIGCONT)
    await never_used_again(before, began)


async def cut_off(scene: Scene) -> None:
    """From everybody."""
    await _partition(scene, clients=True)


async def cut_off_from_servers(scene: Scene) -> None:
    """From all other servers, not from nodes: it stops accepting writes once it knows that it is alone."""
    await _partition(scene, clients=False)


async def _partition(scene: Scene, *, clients: bool) -> None:
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    began = time.monotonic()
    scene.servers.network.separate(before, scene.servers.servers, clients=clients)
    await taken_over(scene, before, after)
    await answering(scene.fleet)
    await asyncio.sleep(max(0.0, began + scene.lengths.partition - time.monotonic()))
    scene.servers.network.release()
    await until(lambda: is_replica(before), TAKEOVER)


async def by_hand(scene: Scene) -> None:
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    await after.call("CLUSTER", "FAILOVER")
    await taken_over(scene, before, after)
    await answering(scene.fleet)


async def twice(scene: Scene) -> None:
    """Within a minute, of the same primary: the second one when the first primary is its replica."""
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    before.kill()
    await taken_over(scene, before, after)
    await _come_back(scene, before, after)
    after.kill()
    await taken_over(scene, after, before)
    await _come_back(scene, after, before)


async def _follows(server: ClusterServer, primary: ClusterServer) -> bool:
    info = await server.info("replication")
    return bool(info["role"] == "slave" and info["master_link_status"] == "up")


async def lagging(scene: Scene) -> None:
    """The replica that takes over lacks the last two seconds."""
    before, after = pair(scene)
    scene.concerns(await agents_of(scene, before))
    await _lose(scene, before, after)
    await taken_over(scene, before, after)
    await answering(scene.fleet)


async def _lose(scene: Scene, before: ClusterServer, after: ClusterServer) -> None:
    """Kill a primary whose replica lacks its last moment."""
    scene.servers.network.separate(before, [after])
    await asyncio.sleep(LAG)
    before.kill()
    scene.servers.network.cut(before)
    scene.servers.network.release()


async def two_at_once(scene: Scene) -> None:
    """Two primaries whose replicas lack the last two seconds. The replica of the first takes over by hand, since one
    primary is no majority, and that of the second much later: the first shard works meanwhile, for longer than the 30 s
    after which what was told is forgotten."""
    (first, its_replica), (second, other_replica) = pair(scene), pair(scene, 2)
    scene.concerns(await agents_of(scene, second))
    scene.servers.network.separate(first, [its_replica])
    scene.servers.network.separate(second, [other_replica])
    await asyncio.sleep(LAG)
    for primary in (first, second):
        primary.kill()
        scene.servers.network.cut(primary)
    scene.servers.network.release()
    other_replica.signal(signal.SIGSTOP)
    await its_replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
    began = time.monotonic()
    await taken_over(scene, first, its_replica)
    await asyncio.sleep(max(0.0, began + scene.lengths.away - time.monotonic()))
    other_replica.signal(signal.SIGCONT)  # two primaries of three are a majority, which elects it
    await taken_over(scene, second, other_replica)
    await answering(scene.fleet)


async def resharded(scene: Scene) -> None:
    """Each slot that the fleet uses is moved to the next primary, key by key and at once in turn."""
    scene.concerns(set())
    cluster: Cluster = scene.servers
    moves: list[Callable[[int, ClusterServer, ClusterServer], Awaitable[None]]] = [
        cluster.move_slot, cluster.move_slot_at_once,
    ]  # fmt: skip
    tags = [*map(str, range(SHARDS)), *schema.MEMBERSHIP, schema.EVENTS, schema.DATA_EPOCH, schema.MOVES]
    for number, slot in enumerate(key_slot(tag.encode()) for tag in tags):
        source = await cluster.owner_of(slot, cluster.servers[0])
        target = cluster.servers[(cluster.servers.index(source) + 1) % 3]
        await moves[number % 2](slot, source, target)
    await answering(scene.fleet)


async def shard_away(scene: Scene) -> None:
    """A primary without a replica. Its agents' callers are told which server it is."""
    gone: ClusterServer = scene.servers.servers[2]
    scene.concerns(await agents_of(scene, gone))
    its = min(scene.concerned)
    began = time.monotonic()
    gone.signal(signal.SIGSTOP)
    try:
        await until(lambda: _is_told(scene, its, gone))
        await asyncio.sleep(max(0.0, began + scene.lengths.away - time.monotonic()))
        assert await _is_told(scene, its, gone)
        for node in scene.fleet.nodes:
            ready = await scene.fleet.http.get(f"http://127.0.0.1:{node.admin}/readyz")
            assert ready.status_code == 200, ready.text
            assert gone.address in ready.text, ready.text
    finally:
        gone.signal(signal.SIGCONT)
    await answering(scene.fleet)
    assert not any("taken for dead" in node.log() for node in scene.fleet.nodes)


async def _is_told(scene: Scene, agent: str, gone: ClusterServer) -> bool:
    for node in scene.fleet.nodes:
        url = f"http://127.0.0.1:{node.api}/v1/commands"
        answer = await scene.fleet.http.post(url, json={"agent": agent, "method": "work"}, timeout=25)
        if answer.status_code != 503 or gone.address not in answer.text:
            return False
    return True


CLUSTER_FAULTS = (
    RedisFault("Cluster: primary killed", with_replicas, killed),
    RedisFault("Cluster: primary frozen for 30 s and woken", with_replicas, frozen_and_woken),
    RedisFault("Cluster: primary cut off from everybody", with_replicas, cut_off),
    RedisFault("Cluster: primary cut off from the other servers, not from nodes", with_replicas, cut_off_from_servers),
    RedisFault("Cluster: failover by hand", with_replicas, by_hand),
    RedisFault("Cluster: two failovers within a minute", with_replicas, twice),
    RedisFault("Cluster: primary killed, replica 2 s behind", with_replicas, lagging, durabilities=("local",)),
    RedisFault("Cluster: two primaries at once, replicas 2 s behind, one back much later", with_replicas, two_at_once,
               durabilities=("local",)),
    RedisFault("Cluster: all slots moved under load", without_replicas, resharded, told=frozenset(),
               durabilities=("local",)),
    RedisFault("Cluster: a shard away for 60 s", without_replicas, shard_away, told=frozenset(),
               durabilities=("local",)),
)  # fmt: skip
