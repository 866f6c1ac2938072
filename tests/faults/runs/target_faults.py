"""Faults of targets and of the run itself: agents that misbehave, a threshold met in mid-flight, an hour of pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fairlead.fleet.schema import NODES

from faults.misbehaving_agent import MISBEHAVIOURS, MisbehavingAgent, Misbehaviour, after_its_deadline, misbehaving
from faults.runs.run_fault import OneServer, RunFault
from faults.runs.run_scene import PATIENCE, RunScene
from support.valkey.turned_clock import TurnedClockServer
from support.waiting import until

DEADLINE = 20.0
"""Seconds for each target of a run in which some let it pass."""
FAILING = 4
HOUR = 3_600


async def misbehave(scene: RunScene) -> None:
    """Some agents answer twice, late, with a wrong digest, in a wrong order, or never. All others end well."""
    scene.ends = frozenset({"ok", "timeout"})
    fleet = scene.fleet
    async with AsyncExitStack() as stack:
        peers = {
            behaviour: await stack.enter_async_context(misbehaving(fleet.a_node(), behaviour.__name__))
            for behaviour in MISBEHAVIOURS
        }
        others = [behaviour.__name__ for behaviour in peers]
        await scene.begin([*others, *scene.crowd.names], deadline=DEADLINE)
        await asyncio.gather(*(_answer(scene, peer, behaviour) for behaviour, peer in peers.items()))
        await scene.ended()
        found = await scene.counts()
        well = sum(word == "ok" for word, _ in MISBEHAVIOURS.values())
        assert found == {"ok": len(scene.crowd.names) + well, "timeout": len(peers) - well}, found


async def _answer(scene: RunScene, peer: MisbehavingAgent, behaviour: Misbehaviour) -> None:
    async with asyncio.timeout(PATIENCE):
        await peer.met()
    if behaviour is after_its_deadline:

        async def timed_out() -> bool:
            return bool((await scene.counts()).get("timeout"))

        await until(timed_out, PATIENCE)  # all of them end by the same deadline
        await asyncio.sleep(2.0)
        await peer.send(peer.chunk(0), peer.end(1))
    else:
        await behaviour(peer)


async def threshold(scene: RunScene) -> None:
    """So many targets fail that the run aborts, while others are under way: they end, and no other starts."""
    scene.ends, scene.state = frozenset({"ok", "failed", "not_started"}), "aborted"
    scene.codes = frozenset({"agent_unknown"})
    names, width = scene.crowd.names, scene.lengths.concurrency
    failing = [f"nobody-{n}" for n in range(FAILING)]
    held = width - FAILING
    if scene.crowd.output is not None:
        await scene.crowd.hold()
    await scene.begin([*names[:held], *failing, *names[held:]], abort_after={"failed": FAILING})

    async def aborted() -> bool:
        return bool((await scene.read())["state"] == "aborted")

    await until(aborted, PATIENCE)
    counts = await scene.counts()
    assert counts["failed"] == FAILING, counts
    if scene.crowd.output is not None:
        assert counts["started"] >= held, "those under way were given up"
    await scene.crowd.go_on()
    found = (await scene.ended())["counts"]
    assert found["not_started"], found


async def paused_for_an_hour(scene: RunScene) -> None:
    """The clock of Redis, which is that of the fleet, is put forward while the run is paused."""
    await scene.begin_and_reach_the_middle(run_deadline=3 * HOUR)
    await scene.wish("/pause")

    async def paused() -> bool:
        return bool((await scene.read())["state"] == "paused")

    await until(paused, PATIENCE)
    await scene.crowd.go_on()

    async def quiet() -> bool:
        return not (await scene.counts()).get("started")

    await until(quiet, PATIENCE)
    before = await scene.counts()
    assert before["waiting"], before
    server = scene.servers.server
    server.turn(HOUR)

    turned, _ = await server.call("TIME")

    async def known() -> bool:
        """Whether every node has heard of the time in a heartbeat."""
        beats = await server.call("ZCOUNT", NODES, int(turned) * 1000, "+inf")
        return bool(beats >= len(scene.fleet.nodes))

    await until(known)
    await scene.fleet.linked(len(scene.crowd.names))
    found = await scene.read()
    assert (found["state"], found["counts"]) == ("paused", before), found
    await scene.wish("/resume")


@asynccontextmanager
async def with_a_clock(folder: Path) -> AsyncIterator[OneServer]:
    server = TurnedClockServer(folder)
    try:
        await server.start()
        yield OneServer(server)
    finally:
        server.stop()


TARGET_FAULTS = (
    RunFault("some agents answer twice, late, wrongly or never", misbehave),
    RunFault("the abort threshold is met in mid-flight", threshold),
    RunFault("it is paused for an hour", paused_for_an_hour, with_a_clock),
)
