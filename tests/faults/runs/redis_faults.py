"""Faults of Redis in the middle of a run: it fails over, is full, or is frozen."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from faults.redis.played_fleet import answering
from faults.runs.run_fault import RunFault
from faults.runs.run_scene import RunScene
from support.valkey.replicas import Replicas
from support.waiting import until

FULL_SHARE = 0.9
LAST_MOMENT = frozenset({"ok", "failed", "timeout"})
LOST = frozenset({"record_lost", "outcome_unknown", "results_gap"})
"""How a target may end of whose last moment only the lost primary knew."""


@asynccontextmanager
async def with_a_replica(folder: Path) -> AsyncIterator[Replicas]:
    async with Replicas(folder) as redis:
        yield redis


async def failed_over(scene: RunScene) -> None:
    """The primary is killed, and its replica has all that it had, or lacks the last milliseconds."""
    await scene.begin_and_reach_the_middle()
    scene.ends, scene.codes = LAST_MOMENT, LOST
    scene.servers.primary.kill()
    await scene.servers.promote()
    await scene.crowd.go_on()
    await answering(scene.fleet)


async def failed_over_late(scene: RunScene) -> None:
    """The replica lacks some seconds: starts and ends of targets, and steps of the run. Ends that were told stay, if
    the command was accepted before."""
    await scene.begin_and_reach_the_middle()
    scene.ends, scene.codes = LAST_MOMENT, LOST
    counts = await scene.counts()
    begun = sum(counts.values()) - counts["waiting"]  # they start in their order
    await scene.servers.in_step()
    scene.servers.hold()
    await scene.crowd.go_on(scene.lengths.concurrency)

    async def more_started() -> bool:
        counts = await scene.counts()
        return sum(counts.values()) - counts.get("waiting", 0) > begun

    await until(more_started)
    told = {line["agent"]: line["state"] for line in await scene.results()}
    scene.servers.primary.kill()
    await scene.servers.promote()
    await scene.crowd.go_on()
    await answering(scene.fleet)
    await scene.ended()
    found = {line["agent"]: line["state"] for line in await scene.results()}
    changed = [agent for agent in scene.crowd.names[:begun] if agent in told and found.get(agent) != told[agent]]
    assert not changed, f"ends that were told have changed: {changed}"


async def frozen(scene: RunScene) -> None:
    """For longer than a run is owned."""
    await scene.begin_and_reach_the_middle()
    scene.servers.server.signal(signal.SIGSTOP)
    try:
        await scene.crowd.go_on()
        await asyncio.sleep(scene.lengths.trouble)
    finally:
        scene.servers.server.signal(signal.SIGCONT)


async def full(scene: RunScene) -> None:
    """What starts is refused from one moment on, before the nodes know why; what is under way ends."""
    await scene.begin_and_reach_the_middle()
    server = scene.servers.server
    used = int((await server.info("memory"))["used_memory"])
    await server.call("CONFIG", "SET", "maxmemory", used // 2)
    await scene.crowd.go_on()

    async def known() -> bool:
        return all([await _share(scene, place) > FULL_SHARE for place in range(len(scene.fleet.nodes))])

    await until(known)
    await asyncio.sleep(scene.lengths.trouble)
    found = await scene.read()
    assert (found["state"], found["ended"]) == ("running", None), found
    await server.call("CONFIG", "SET", "maxmemory", 0)


async def _share(scene: RunScene, place: int) -> float:
    """The share of its limit that Redis uses, as a node knows it."""
    node = scene.fleet.nodes[place]
    limit = await scene.fleet.metric(node, "fairlead_redis_memory_limit_bytes")
    return await scene.fleet.metric(node, "fairlead_redis_memory_bytes") / limit if limit else 0.0


REDIS_FAULTS = (
    RunFault("Redis fails over", failed_over, with_a_replica),
    RunFault("Redis fails over, and lacks the last seconds", failed_over_late, with_a_replica),
    RunFault("Redis is frozen", frozen),
    RunFault("Redis is full, and has room again", full),
)
