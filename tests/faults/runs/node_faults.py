"""Faults of nodes and links in the middle of a run."""

from __future__ import annotations

import asyncio
import signal
import time

from faults.runs.run_fault import RunFault
from faults.runs.run_scene import RunScene
from faults.scenarios import kill


async def owner_killed(scene: RunScene) -> None:
    await scene.begin_and_reach_the_middle()
    owner = await scene.owner()
    await kill(owner)
    await scene.crowd.go_on()
    await scene.is_driven_elsewhere(owner)
    await owner.start()


async def other_killed(scene: RunScene) -> None:
    """The node that does not own the run, with its links. It comes back once the run has ended."""
    await scene.begin_and_reach_the_middle()
    owner, other = await scene.owner(), await scene.other()
    await kill(other)
    await scene.crowd.go_on()
    await scene.ended()
    await scene.has_ended_at(owner)  # which had no fault
    await other.start()


async def owner_frozen(scene: RunScene) -> None:
    """Another node goes on meanwhile; what wakes has old steps, old starts and old links."""
    await scene.begin_and_reach_the_middle()
    owner, other = await scene.owner(), await scene.other()
    scene.fleet.avoided = owner  # a load balancer finds out that it does not answer
    owner.signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        await scene.is_driven_elsewhere(owner)
        await scene.crowd.go_on()
        await asyncio.sleep(max(0.0, began + scene.lengths.frozen - time.monotonic()))
    finally:
        owner.signal(signal.SIGCONT)
        scene.fleet.avoided = None
    await scene.ended()
    await scene.has_ended_at(other)


async def links_cut(scene: RunScene) -> None:
    """All agents connect again at once."""
    await scene.begin_and_reach_the_middle()
    assert scene.fleet.balancer.cut() >= len(scene.crowd.names)
    await scene.crowd.go_on()


NODE_FAULTS = (
    RunFault("its owner is killed (-9)", owner_killed),
    RunFault("a node that does not own it is killed (-9), with its links", other_killed),
    RunFault("its owner is frozen, and wakes", owner_frozen),
    RunFault("all agents connect again at once", links_cut),
)
