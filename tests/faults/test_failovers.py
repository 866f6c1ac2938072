"""Failovers to a replica that lacks the last moment, and a slow Redis, while commands run on all agents.

The nodes reach Redis behind one address. Nothing is silently lost or run twice with either kind of durability; with
`local` a command may be told as lost.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.redis.played_fleet import LAST_MOMENT, answering, played
from support.valkey.replicas import Replicas

pytestmark = pytest.mark.timeout(400)
LAG = 2.0
"""Seconds that the replica lacks."""
DELAY = 0.05


async def lagging(redis: Replicas) -> None:
    redis.hold()
    await asyncio.sleep(LAG)
    redis.primary.kill()
    await redis.promote()


async def silent(redis: Replicas) -> None:
    """By hand, behind connections that stay."""
    redis.hold()
    await asyncio.sleep(LAG)
    await redis.promote(silent=True)


async def twice(redis: Replicas) -> None:
    old = redis.primary
    await lagging(redis)
    redis.release()
    await old.start()
    await redis.follow(old)
    await redis.in_step()
    await lagging(redis)


async def slow(redis: Replicas) -> None:
    redis.front.delay = DELAY
    await asyncio.sleep(5)
    redis.front.delay = 0


async def late(redis: Replicas) -> None:
    """Redis gets late what its clients have given up."""
    redis.front.hold()
    await asyncio.sleep(2.5)
    redis.front.release()


@pytest.mark.parametrize("fault", [lagging, silent, twice, slow, late], ids=lambda fault: fault.__name__)
async def test_what_a_failover_loses_is_told_and_nothing_runs_twice(fault: object, tmp_path: Path) -> None:
    assert callable(fault)
    async with (
        Replicas(tmp_path / "servers") as redis,
        played(tmp_path, redis.url, frozenset() if fault in (slow, late) else LAST_MOMENT) as fleet,
    ):
        await fault(redis)
        await answering(fleet)


async def test_a_killed_primary_loses_nothing_with_replicas_that_confirm(tmp_path: Path) -> None:
    async with (
        Replicas(tmp_path / "servers", 2) as redis,
        played(tmp_path, redis.url, flags=("--durability", "replicated")) as fleet,
    ):
        redis.primary.kill()
        # As Sentinels do: of the replicas the one that has the most.
        offsets = {server.port: (await server.info("replication"))["slave_repl_offset"] for server in redis.replicas}
        new, other = sorted(redis.replicas, key=lambda server: -offsets[server.port])
        await redis.promote(new)
        await redis.follow(other)
        await answering(fleet)
