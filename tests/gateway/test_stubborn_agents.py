"""Agents that do not leave when they are told to move, or come back to the same node at once: each is told once, the
links of those that stay are closed, and nobody else has to go for them."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.directives.rebalance_targets import RebalanceTargets
from fairlead.fleet.node_rows import NodeRows
from fairlead.fleet.node_table import NodeRow
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Drain

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import TIMEOUT, MakeGateway
from support.gateway.scripted_agent import DialAgent

AGENTS, KEPT = 12, 6


@pytest.mark.timeout(240)
async def test_links_that_are_being_closed_cost_nobody_else_the_link(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """Half of the agents are told to move, and neither leave nor answer when they are closed. The others stay."""
    gateway, store = make_gateway(own_valkey.url, name="node-1"), await redis_of(own_valkey)
    make_gateway(own_valkey.url, name="node-2")  # where they could go
    peers = [await dial(gateway) for _ in range(AGENTS)]
    for peer in peers:
        await peer.greet()
        peer.socket.transport.pause_reading()

    async def row() -> NodeRow:
        await RebalanceTargets(store).write({"node-1": RebalanceTarget(KEPT)})
        found, _ = await NodeRows(store).look_up("node-1")
        assert found is not None
        return found

    async with asyncio.timeout(4 * TIMEOUT):
        while (now := await row()).moved < AGENTS - KEPT or now.links > KEPT:
            assert now.moved <= AGENTS - KEPT, "those whose links are being closed count as gone"
            await asyncio.sleep(0.25)
        first = now
        while (now := await row()).at < first.at + 6_000:  # a heartbeat later
            await asyncio.sleep(0.25)
    assert (now.links, now.moved) == (KEPT, AGENTS - KEPT)


@pytest.mark.timeout(240)
async def test_agents_that_always_come_back_are_told_to_move_once_in_an_hour(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    """Whoever is told opens its new link at the same node, as behind a load balancer that pins or on purpose."""
    gateway, store = make_gateway(own_valkey.url, name="node-1"), await redis_of(own_valkey)
    make_gateway(own_valkey.url, name="node-2")  # where they could go
    told: dict[str, int] = {}

    async def come_back(agent: str) -> None:
        peer, conn = await dial(gateway, agent), 1
        await peer.greet()
        while True:
            drain = await peer.expect(Drain)
            told[agent] = told.get(agent, 0) + 1
            await asyncio.sleep(drain.slot / 1000)
            again, conn = await dial(gateway, agent), conn + 1
            await again.greet(conn=conn)
            await peer.socket.close(1000, "moved to a new link")
            peer = again

    async def row() -> NodeRow:
        await RebalanceTargets(store).write({"node-1": RebalanceTarget(KEPT)})
        found, _ = await NodeRows(store).look_up("node-1")
        assert found is not None
        return found

    agents = [f"agent-{n}" for n in range(AGENTS)]
    tasks = [asyncio.create_task(come_back(agent)) for agent in agents]
    try:
        async with asyncio.timeout(4 * TIMEOUT):
            while (now := await row()).moved < AGENTS:
                assert not [task.exception() for task in tasks if task.done()]
                await asyncio.sleep(0.25)
            first = now
            while (now := await row()).at < first.at + 16_000:  # three heartbeats later, and longer than any grace
                await asyncio.sleep(0.25)
        assert (now.links, now.moved) == (AGENTS, AGENTS), "they are still too many, and nobody is told again"
        assert told == dict.fromkeys(agents, 1)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
