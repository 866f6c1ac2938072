"""Faults of a primary with two replicas and three Sentinels. Everybody reaches the servers over lines of a network."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from faults.redis.played_fleet import answering
from faults.redis.redis_fault import RedisFault, Scene
from support.valkey.network_process import NetworkProcess
from support.valkey.replication import Replication
from support.valkey.server import ValkeyServer
from support.waiting import until

LAG = 2.0
"""Seconds that the replicas lack."""
PAUSE_MS = 30_000
TAKEOVER = 90.0
"""Seconds for a failover on a busy machine."""


@asynccontextmanager
async def sentinels(folder: Path) -> AsyncIterator[Replication]:
    async with NetworkProcess() as network:
        servers = Replication(folder, network=network)
        try:
            await servers.start()
            yield servers
        finally:
            servers.stop()


async def taken_over(scene: Scene, before: ValkeyServer) -> ValkeyServer:
    """Wait until a replica is the primary and the nodes of the fleet have found it."""
    servers: Replication = scene.servers

    async def replaced() -> bool:
        return await servers.primary() is not before and scene.fleet.store.address != before.address

    await until(replaced, TAKEOVER)
    await answering(scene.fleet)
    return await servers.primary()


async def is_replica(server: ValkeyServer) -> bool:
    return str((await server.info("replication"))["role"]) == "slave"


async def killed(scene: Scene) -> None:
    before = await scene.servers.primary()
    before.kill()
    await taken_over(scene, before)


async def frozen_and_woken(scene: Scene) -> None:
    before = await scene.servers.primary()
    began = time.monotonic()
    before.signal(signal.SIGSTOP)
    await taken_over(scene, before)
    await asyncio.sleep(max(0.0, began + scene.lengths.frozen - time.monotonic()))
    before.signal(signal.SIGCONT)
    await never_used_again(before, began)


async def never_used_again(server: ValkeyServer, since: float) -> None:
    """Watch a primary that was replaced until it knows it: no node may connect to it. What stood in its buffers before
    may still be executed; it is lost with its data."""

    async def settled() -> bool:
        clients = (await server.call("CLIENT", "LIST")).decode().splitlines()
        for client in clients:
            facts = dict(fact.split("=", 1) for fact in client.split() if "=" in fact)
            young = int(facts["age"]) < time.monotonic() - since - 1
            assert not (facts["name"].startswith("fairlead.") and young), f"a node uses the woken primary: {client}"
        return await is_replica(server)

    await until(settled, TAKEOVER)


async def cut_off(scene: Scene) -> None:
    """From everybody. It does not know that it was replaced, and nobody can tell it."""
    before = await scene.servers.primary()
    began = time.monotonic()
    scene.servers.network.separate(before, everybody(scene), clients=True)
    await taken_over(scene, before)
    await asyncio.sleep(max(0.0, began + scene.lengths.partition - time.monotonic()))
    scene.servers.network.release()
    await until(lambda: is_replica(before), TAKEOVER)


async def cut_off_from_servers(scene: Scene) -> None:
    """From replicas and Sentinels, not from nodes: they write to it until they learn that another one was promoted."""
    before = await scene.servers.primary()
    began = time.monotonic()
    scene.servers.network.separate(before, everybody(scene))
    await taken_over(scene, before)
    await asyncio.sleep(max(0.0, began + scene.lengths.partition - time.monotonic()))
    scene.servers.network.release()
    await until(lambda: is_replica(before), TAKEOVER)


async def cut_off_with_a_sentinel(scene: Scene) -> None:
    """As before, with a Sentinel on its side that names it on: nodes reach both sides."""
    before, beside = await scene.servers.primary(), scene.servers.sentinels[0]
    began = time.monotonic()
    others = [other for other in everybody(scene) if other not in (before, beside)]
    for one in (before, beside):
        scene.servers.network.separate(one, others)
    await taken_over(scene, before)
    await asyncio.sleep(max(0.0, began + scene.lengths.partition - time.monotonic()))
    assert scene.fleet.store.address != before.address
    scene.servers.network.release()
    await until(lambda: is_replica(before), TAKEOVER)


async def cut_off_from_nodes(scene: Scene) -> None:
    """From nodes alone: for the Sentinels nothing is wrong. At the end the primary gets what was on its way."""
    before = await scene.servers.primary()
    scene.servers.network.separate(before, (), clients=True)
    await asyncio.sleep(scene.lengths.partition)
    scene.servers.network.release()
    await answering(scene.fleet)
    assert await scene.servers.primary() is before


async def by_hand(scene: Scene) -> None:
    """As docs/operations.md says: without writes until another one is the primary. A Sentinel promotes any replica, and
    this one may lack what only the other has confirmed."""
    before = await scene.servers.primary()
    await before.call("CLIENT", "PAUSE", PAUSE_MS, "WRITE")
    offset = (await before.info("replication"))["master_repl_offset"]

    async def in_step() -> bool:
        info = await before.info("replication")
        return all(info[f"slave{i}"]["offset"] >= offset for i in range(2))

    await until(in_step)
    await scene.servers.fail_over()
    await taken_over(scene, before)


async def by_hand_at_once(scene: Scene) -> None:
    """Without that pause."""
    before = await scene.servers.primary()
    await scene.servers.fail_over()
    await taken_over(scene, before)


async def twice(scene: Scene) -> None:
    """Within a minute: the second one when the first primary is a replica again."""
    before = await scene.servers.primary()
    before.kill()
    following = await taken_over(scene, before)
    await before.start()
    await until(scene.servers.is_complete, TAKEOVER)
    following.kill()
    await taken_over(scene, following)


async def lagging(scene: Scene) -> None:
    """The replica that takes over lacks the last two seconds."""
    before = await scene.servers.primary()
    scene.servers.network.separate(before, scene.servers.servers)
    await asyncio.sleep(LAG)
    before.kill()
    scene.servers.network.cut(before)
    scene.servers.network.release()
    await taken_over(scene, before)


def everybody(scene: Scene) -> list[ValkeyServer]:
    return [*scene.servers.servers, *scene.servers.sentinels]


SENTINEL_FAULTS = (
    RedisFault("primary killed", sentinels, killed),
    RedisFault("primary frozen for 30 s and woken", sentinels, frozen_and_woken),
    RedisFault("primary cut off from everybody", sentinels, cut_off),
    RedisFault("primary cut off from replicas and Sentinels, not from nodes", sentinels, cut_off_from_servers),
    RedisFault("primary cut off with one Sentinel, not from nodes", sentinels, cut_off_with_a_sentinel),
    RedisFault("primary cut off from nodes alone", sentinels, cut_off_from_nodes, told=frozenset()),
    RedisFault("failover by hand, after a pause of writes", sentinels, by_hand),
    RedisFault("failover by hand, at once", sentinels, by_hand_at_once, durabilities=("local",)),
    RedisFault("two failovers within a minute", sentinels, twice),
    RedisFault("primary killed, replicas 2 s behind", sentinels, lagging, durabilities=("local",)),
)
