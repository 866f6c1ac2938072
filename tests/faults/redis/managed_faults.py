"""Faults of a managed Redis: one address that stays the same, behind which a replica takes over while all connections
stay open. Nobody tells the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from faults.redis.played_fleet import answering
from faults.redis.redis_fault import RedisFault, Scene
from faults.redis.sentinel_faults import LAG, TAKEOVER
from support.valkey.replicas import Replicas
from support.waiting import until


@asynccontextmanager
async def managed(folder: Path) -> AsyncIterator[Replicas]:
    """A primary with one replica, so that what is confirmed is confirmed by the one that takes over."""
    async with Replicas(folder) as redis:
        yield redis


async def switched(scene: Scene) -> None:
    """The address leads to the replica, and the old primary follows it."""
    await _switch(scene)


async def switched_twice(scene: Scene) -> None:
    """Within a minute."""
    for _ in range(2):
        await _switch(scene)


async def switched_behind(scene: Scene) -> None:
    """The replica lacks the last two seconds."""
    scene.servers.hold()
    await asyncio.sleep(LAG)
    await _switch(scene)


async def died_and_switched(scene: Scene) -> None:
    """The address leads nowhere for a while, and then to the replica, which gets what was on its way."""
    redis: Replicas = scene.servers
    redis.front.hold()
    await asyncio.sleep(scene.lengths.partition)
    await _switch(scene)


async def _switch(scene: Scene) -> None:
    redis: Replicas = scene.servers
    before = [await scene.fleet.metric(node, "fairlead_redis_failovers_total") for node in scene.fleet.nodes]
    old = await redis.promote(silent=True)
    redis.front.release()
    await redis.follow(old)

    async def noticed() -> bool:
        now = [await scene.fleet.metric(node, "fairlead_redis_failovers_total") for node in scene.fleet.nodes]
        return all(count > earlier for count, earlier in zip(now, before, strict=True))

    await until(noticed, TAKEOVER)
    await redis.in_step()
    await answering(scene.fleet)


MANAGED_FAULTS = (
    RedisFault("managed: another primary behind connections that stay", managed, switched),
    RedisFault("managed: two such failovers within a minute", managed, switched_twice),
    RedisFault("managed: no answer for 20 s, then another primary behind the same connections", managed,
               died_and_switched),
    RedisFault("managed: the new primary is 2 s behind", managed, switched_behind, durabilities=("local",)),
)  # fmt: skip
