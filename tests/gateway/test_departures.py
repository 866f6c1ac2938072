"""A node counts the agents that leave on purpose, because the operator expects all others back."""

from __future__ import annotations

import asyncio
import signal

from fairlead.fleet.node_rows import NodeRows
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import Bye

from support.fixtures import RedisOf
from support.gateway.process import TIMEOUT, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def test_only_an_agent_that_says_goodbye_has_left(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    gateway = make_gateway(own_valkey.url, name="node-1")
    agents = [await dial(gateway) for _ in range(4)]
    for agent in agents:
        await agent.greet()
    stops, restarts, moves, lost = agents
    await stops.socket.close(1001, "the agent stops")
    await restarts.send(Bye(code=1001, why="the agent stops"))
    await moves.socket.close(1000, "moved to a new link")
    lost.socket.transport.abort()
    store = Pipeliner(own_valkey.url)
    store.start()
    try:
        assert await store.wait_available(10)

        async def gone() -> bool:
            row, _ = await NodeRows(store).look_up("node-1")
            return row is not None and (row.accepted, row.links) == (4, 0)

        await until(gone)
        row, _ = await NodeRows(store).look_up("node-1")
        assert row is not None
        assert row.left == 2
    finally:
        await store.aclose()


async def test_last_row_of_a_node_that_stops_has_the_agents_that_left_since_its_last_heartbeat(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, redis_of: RedisOf
) -> None:
    """They leave while it drains, and the node ends with the last link: long before its next heartbeat."""
    gateway, store = make_gateway(own_valkey.url, name="node-1"), await redis_of(own_valkey)
    agents = [await dial(gateway) for _ in range(3)]
    for agent in agents:
        await agent.greet()
    gateway.signal(signal.SIGTERM)
    for agent in agents:
        await agent.socket.close(1001, "the agent stops")
    async with asyncio.timeout(TIMEOUT):
        while (row := (await NodeRows(store).look_up("node-1"))[0]) is None or row.state != "stopped":
            await asyncio.sleep(0.05)
    assert (row.links, row.left) == (0, 3)
