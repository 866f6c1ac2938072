"""A rollout as agents and a load balancer see it: nodes of the old revision leave the service and keep their links, and
an agent that has to move moves once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.fleet import schema
from fairlead.fleet.directives.preferred_revision import PreferredRevision, PreferredRevisions
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, text

from faults.balancer import Balancer
from support.fixtures import RedisOf
from support.gateway.kubelet import Kubelet, probing
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until

AGENTS = 200
SUPERSEDED = "a newer revision takes new links\n"


@pytest.fixture
async def kubelet() -> AsyncIterator[Kubelet]:
    async with probing([]) as made:
        yield made


@pytest.fixture
async def balancer(kubelet: Kubelet) -> AsyncIterator[Balancer]:
    made = Balancer(kubelet.ports, random.Random(13))
    await made.start()
    yield made
    await made.stop()


@asynccontextmanager
async def swarm(port: int, folder: Path) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "fairlead", "swarm", "-n", str(AGENTS), "--url", f"ws://127.0.0.1:{port}"]
    with (folder / "swarm.log").open("wb") as log:
        process = subprocess.Popen([*command, "--id-prefix", "a"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, 60)


async def prefer(store: Pipeliner, revision: str, seconds: float) -> None:
    """What the operator does in a pass, with a time of its own."""
    now, _ = items(await store.submit("TIME"))
    until = integer(now) * 1000 + int(seconds * 1000)
    await PreferredRevisions(store).write(PreferredRevision(revision, until))


async def places(store: Pipeliner) -> dict[str, tuple[str, int]]:
    """The node of each agent that has one, and the generation of its link, which is another one after each move."""
    found = {}
    for agent in (f"a-{n}" for n in range(AGENTS)):
        lease, gen = items(await store.submit("HMGET", schema.agent_key(agent), "lease", "gen"))
        if lease:
            found[agent] = text(lease).partition("#")[0], integer(gen)
    return found


@pytest.mark.timeout(300)
async def test_agents_of_nodes_that_a_rollout_replaces_move_once(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    redis_of: RedisOf,
    kubelet: Kubelet,
    balancer: Balancer,
    tmp_path: Path,
) -> None:
    """Two nodes of each revision; the old ones end one after the other, so that the agents of the first would land on
    the second if it were still in the service."""
    store = await redis_of(own_valkey)

    def nodes(revision: str) -> list[GatewayProcess]:
        return [make_gateway(own_valkey.url, "--revision", revision, name=f"{revision}-{n}") for n in (0, 1)]

    old = nodes("old")
    kubelet.nodes += old

    async def ready(count: int) -> bool:
        return len(kubelet.ports()) == count

    await until(lambda: ready(2))
    async with swarm(balancer.port, tmp_path):

        async def settled(names: set[str]) -> bool:
            """All agents are linked, to these nodes alone."""
            found = await places(store)
            return len(found) == AGENTS and {node for node, _ in found.values()} == names

        await until(lambda: settled({"old-0", "old-1"}))
        first = await places(store)
        new = nodes("new")
        kubelet.nodes += new
        await until(lambda: ready(4))
        await prefer(store, "new", seconds=600)

        async def superseded() -> bool:
            return await kubelet.probe(old) == [(503, SUPERSEDED)] * 2

        await until(superseded)
        assert await kubelet.probe(new) == [(200, "ok\n")] * 2
        assert await places(store) == first, "nobody moves because a node leaves the service"
        await end(old[0])
        await until(lambda: settled({"old-1", "new-0", "new-1"}))
        second = await places(store)
        stayed = {agent for agent, place in second.items() if place == first[agent]}
        assert stayed == {agent for agent, (node, _) in first.items() if node == "old-1"}
        assert {node for agent, (node, _) in second.items() if agent not in stayed} == {"new-0", "new-1"}
        await end(old[1])
        await until(lambda: settled({"new-0", "new-1"}))
        third = await places(store)
        assert {agent for agent, place in third.items() if place != second[agent]} == stayed, "each has moved once"


async def end(node: GatewayProcess) -> None:
    """What a kubelet does to a pod that is deleted, until its container has ended."""
    node.signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait) == 0


async def test_nodes_take_new_links_again_when_the_operator_no_longer_directs_them(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, kubelet: Kubelet
) -> None:
    """The directive expires, even while Redis is away; a node without a revision never heeds it."""
    store = await redis_of(own_valkey)
    old = make_gateway(own_valkey.url, "--revision", "old", name="old")
    unaware = make_gateway(own_valkey.url, name="unaware")

    async def answers(status: int, text: str) -> bool:
        """Without a further line, which says that Redis is away."""
        found = [(code, body.splitlines()[0]) for code, body in await kubelet.probe([unaware, old])]
        assert found[0] == (200, "ok")
        return found[1] == (status, text.splitlines()[0])

    async def directed() -> bool:
        await prefer(store, "new", seconds=10)
        return await answers(503, SUPERSEDED)

    await until(lambda: answers(200, "ok\n"))
    await until(directed)
    await until(lambda: answers(200, "ok\n"))
    await until(directed)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    await until(lambda: answers(200, "ok\n"))
