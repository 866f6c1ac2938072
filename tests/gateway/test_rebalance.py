"""Three nodes that join a full one get their share of its links: real nodes and agents, the operator's own code, and a
load balancer that chooses at random among the nodes that are ready."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.agent import Agent, Command
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead_operator.autoscaler.history.rebalance_history import RebalanceOutcome

from faults.balancer import Balancer
from support.gateway.kubelet import Kubelet, probing
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import TIMEOUT, GatewayProcess, MakeGateway
from support.gateway.rebalance_passes import RebalancePasses
from support.gateway.scripted_agent import AGENT_TOKEN

IDLE, BUSY = 360, 40
PASS = 2.0
"""Seconds between two passes: the operator takes ten, and nodes send a heartbeat every five."""


class BusyAgent:
    """An agent of the SDK inside a command that ends when the test says so."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.release = asyncio.Event()
        self.agent = Agent(url, name, AGENT_TOKEN)
        self.serving = asyncio.create_task(self.agent.serve())

        @self.agent.command("hold")
        async def hold(command: Command) -> str:
            await self.release.wait()
            return "released"

    async def stop(self) -> None:
        self.agent.stop()
        async with asyncio.timeout(TIMEOUT):
            await self.serving


@asynccontextmanager
async def simulated_agents(url: str, count: int, folder: Path) -> AsyncIterator[None]:
    """A `fairlead swarm` of that many idle agents, named idle-0 and so on."""
    with (folder / "swarm.log").open("wb") as log:
        swarm: Process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", "swarm", "--url", url, "--agents", str(count), "--id-prefix", "idle",
            "--processes", "1", "-o", "json",
            stdin=DEVNULL, stdout=log, stderr=log, env={**os.environ, "FAIRLEAD_AGENT_TOKEN": AGENT_TOKEN},
        )  # fmt: skip
    try:
        yield
    finally:
        swarm.terminate()
        async with asyncio.timeout(TIMEOUT):
            await swarm.wait()


async def holders(api: GatewayApi) -> dict[str, str]:
    """The node of each agent that is online."""
    found: dict[str, str] = {}
    cursor = ""
    while True:
        query = f"state=online&limit=200{f'&cursor={cursor}' if cursor else ''}"
        answer = await api.http.get(f"/v1/agents?{query}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found |= {one["id"]: one["node"] for one in page["agents"]}
        if not (cursor := page["cursor"] or ""):
            return found


class RandomCommands:
    """Commands to random idle agents at 20/s until the end of the block, each followed to its end."""

    def __init__(self, api: GatewayApi) -> None:
        self._api = api
        self._rng = random.Random(1)
        self.ends: Counter[str] = Counter()

    async def __aenter__(self) -> RandomCommands:
        self._posting = asyncio.create_task(self._post())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._posting.cancel()
        await asyncio.wait({self._posting})

    async def _post(self) -> None:
        following: set[asyncio.Task[None]] = set()
        try:
            while True:
                following.add(asyncio.create_task(self._one(f"idle-{self._rng.randrange(IDLE)}")))
                await asyncio.sleep(0.05)
        finally:
            await asyncio.wait(following)
            for task in following:
                task.result()

    async def _one(self, agent: str) -> None:
        command = await self._api.start(agent, "work", deadline=120)
        self.ends[str((await self._api.end(command))["state"])] += 1


def max_over_mean(nodes: dict[str, str]) -> float:
    counts = Counter(nodes.values())
    return max(counts.values()) * 4 / sum(counts.values())


async def nobody_is_moved_twice(passes: RebalancePasses, api: GatewayApi, nodes: dict[str, str]) -> None:
    """Two nodes are asked to keep nothing. Only links that stayed at node-1 so far may move. All agents were there at
    first, so it has moved each of them once in the end."""
    before = (await passes.read()).rows
    stayed = {agent for agent, node in nodes.items() if node == "node-1"}
    async with asyncio.timeout(TIMEOUT):
        while True:
            await passes.redis.write_rebalance({"node-1": RebalanceTarget(0), "node-2": RebalanceTarget(0)})
            now = (await passes.read()).rows
            # Node-2 has read its target meanwhile: it does so as often as it sends heartbeats.
            read = now["node-2"].at - before["node-2"].at > 12_000
            if read and now["node-1"].moved >= IDLE + BUSY:
                break
            await asyncio.sleep(1)
    assert now["node-1"].moved == IDLE + BUSY
    assert now["node-2"].moved == before["node-2"].moved
    after = await holders(api)
    assert {agent: after[agent] for agent in nodes.keys() - stayed} == {
        agent: nodes[agent] for agent in nodes.keys() - stayed
    }


@pytest.mark.timeout(600)
async def test_links_move_to_nodes_that_join_and_nobody_notices(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    fleet: list[GatewayProcess] = [make_gateway(own_valkey.url, "--accept-rate=5000", name="node-1")]
    api = api_of(fleet[0])
    async with probing(fleet) as kubelet:
        balancer = Balancer(kubelet.ports, random.Random(1))
        await balancer.start()
        try:
            await links_move(fleet, balancer, own_valkey, make_gateway, api, tmp_path)
        finally:
            await balancer.stop()


async def links_move(
    fleet: list[GatewayProcess],
    balancer: Balancer,
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api: GatewayApi,
    tmp_path: Path,
) -> None:
    url = f"ws://127.0.0.1:{balancer.port}"
    passes = RebalancePasses(own_valkey.url, operation="uid-of-a-rebalance")
    busy = [BusyAgent(url, f"busy-{n}") for n in range(BUSY)]
    async with simulated_agents(url, IDLE, tmp_path):
        async with asyncio.timeout(TIMEOUT):
            while len(await holders(api)) < IDLE + BUSY:
                await asyncio.sleep(0.2)
        held = [await api.start(agent.name, "hold", deadline=600) for agent in busy]
        fleet += [make_gateway(own_valkey.url, "--accept-rate=5000", name=f"node-{number}") for number in (2, 3, 4)]
        async with RandomCommands(api) as traffic:
            plan = await passes.run_until_ended(PASS, 5 * TIMEOUT)
        assert plan.ended is not None
        assert plan.ended.outcome is RebalanceOutcome.EVEN, plan.reason
        # Only the reports were even so far: now the rows of the agents themselves.
        nodes = await holders(api)
        assert len(nodes) == IDLE + BUSY
        assert max_over_mean(nodes) <= 1.10
        moves = sum(row.moved for row in (await passes.read()).rows.values())
        assert moves <= 1.1 * 0.75 * (IDLE + BUSY), "three quarters of the agents move, once"
        assert {nodes[agent.name] for agent in busy} == {"node-1"}
        assert traffic.ends["ok"] == traffic.ends.total() > 0
        for agent in busy:
            agent.release.set()
        assert {(await api.end(command))["state"] for command in held} == {"ok"}
        await nobody_is_moved_twice(passes, api, nodes)
    await asyncio.gather(*(agent.stop() for agent in busy))
    await passes.aclose()


async def node_of_all(api: GatewayApi, count: int) -> str:
    """The node that all agents have, "" while they have several."""
    nodes = await holders(api)
    return nodes.popitem()[1] if len(nodes) == count and len(set(nodes.values())) == 1 else ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_agents_whose_node_has_gone_may_be_moved_again(
    end: signal.Signals,
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    tmp_path: Path,
) -> None:
    """A rebalance moves all agents to a second node, which then stops or dies. A third one gets them in the same
    hour."""
    count = 40
    first = make_gateway(own_valkey.url, name="node-1")
    fleet, api, passes = [first], api_of(first), RebalancePasses(own_valkey.url)

    async def all_at(node: str) -> None:
        async with asyncio.timeout(4 * TIMEOUT):
            while await node_of_all(api, count) != node:
                await passes.read()
                if node != first.name:
                    await passes.redis.write_rebalance({first.name: RebalanceTarget(0, 0)})
                await asyncio.sleep(0.2)

    async with probing(fleet) as kubelet:
        balancer = Balancer(kubelet.ports, random.Random(1))
        await balancer.start()
        try:
            async with simulated_agents(f"ws://127.0.0.1:{balancer.port}", count, tmp_path):
                await all_at("node-1")
                fleet.append(make_gateway(own_valkey.url, name="node-2"))
                await all_at("node-2")
                await passes.redis.write_rebalance({})
                fleet[1].signal(end)
                await all_at("node-1")
                fleet.append(make_gateway(own_valkey.url, name="node-3"))
                await all_at("node-3")
        finally:
            await balancer.stop()
    await passes.aclose()


@pytest.mark.timeout(600)
async def test_operator_that_dies_in_mid_move_leaves_all_nodes_ready_and_no_node_short_of_links(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    fleet = [make_gateway(own_valkey.url, "--accept-rate=5000", name="node-1")]
    api, passes = api_of(fleet[0]), RebalancePasses(own_valkey.url, operation="uid-of-a-rebalance")
    async with probing(fleet) as kubelet:
        balancer = Balancer(kubelet.ports, random.Random(1))
        await balancer.start()
        try:
            async with simulated_agents(f"ws://127.0.0.1:{balancer.port}", IDLE, tmp_path):
                async with asyncio.timeout(TIMEOUT):
                    while len(await holders(api)) < IDLE:
                        await asyncio.sleep(0.2)
                fleet.append(make_gateway(own_valkey.url, "--accept-rate=5000", name="node-2"))
                async with RandomCommands(api) as traffic:
                    await operator_dies_in_mid_move(passes, kubelet)
                    counts = Counter((await holders(api)).values())
                assert traffic.ends["ok"] == traffic.ends.total() > 0
                assert counts.total() == IDLE
                kept = min(target.keep for target in passes.plans[-1].targets.values())
                assert counts["node-1"] >= kept, "it has moved no more than it was asked to"
                late = BusyAgent(fleet[0].link, "late")  # a node that was full takes links again
                async with asyncio.timeout(TIMEOUT):
                    while (await holders(api)).get("late") != "node-1":
                        await asyncio.sleep(0.2)
                await late.stop()
        finally:
            await balancer.stop()
    await passes.aclose()


async def operator_dies_in_mid_move(passes: RebalancePasses, kubelet: Kubelet) -> None:
    """The last pass is one in which links move. Returns when no node has a target any more and all are ready."""
    async with asyncio.timeout(3 * TIMEOUT):
        while (await passes.read()).rows["node-1"].moved < IDLE // 20:
            await passes.run_once()
            await asyncio.sleep(PASS)
        while any(row.excluded_by for row in (await passes.read()).rows.values()) or len(kubelet.ports()) < 2:
            await asyncio.sleep(0.5)
