"""A link that sends too much slows only itself, and an outage of Redis costs no more memory than the limit."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from fairlead.carrier.reading.scheduler import SLICE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk, End, Event, Hb, Rx

from support.gateway.metrics import metric
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

MIB = 1 << 20


async def test_commands_are_not_delayed_by_a_flood_of_heartbeats(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """Ten links flood the node, each is read at its rate: the commands of another agent end, and no link is closed."""
    gateway = make_gateway(own_valkey.url, "--message-rate", "20")
    api = api_of(gateway)
    good = await dial(gateway)
    await good.greet()
    flooders = [await dial(gateway) for _ in range(10)]
    for flooder in flooders:
        await flooder.greet()
    beat = flooders[0].codec.encode(Hb(ts=1))

    async def flood(flooder: ScriptedAgent) -> None:
        while True:
            await flooder.socket.send(beat)
            await asyncio.sleep(0)  # sending gives way to nobody while there is room

    async def hear(flooder: ScriptedAgent) -> None:
        while True:
            await flooder.socket.recv()

    tasks = [asyncio.create_task(work(flooder)) for flooder in flooders for work in (flood, hear)]
    try:
        async with asyncio.timeout(20):
            while await metric(gateway, "fairlead_links_read_paused") < 10:  # a gauge has no event
                await asyncio.sleep(0.05)
        for _ in range(20):
            command = await api.start(good.agent)
            await good.command()
            await good.send(Ack(id=command), End(id=command, total=0))
            assert (await api.end(command))["state"] == "ok"
        assert await metric(gateway, "fairlead_redis_errors_total") == 0
        assert await metric(gateway, "fairlead_agents") == 11, "who is over a budget waits, and is not closed for it"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", ["empty chunks", "acks"])
async def test_an_open_command_is_no_way_around_the_budget(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, kind: str
) -> None:
    """No credit bounds chunks without octets, nor a second ack: they are read as heartbeats are."""
    rate, count = 20, 3_000
    gateway = make_gateway(own_valkey.url, "--message-rate", str(rate))
    api, flooder = api_of(gateway), await dial(gateway)
    await flooder.greet()
    command = await api.start(flooder.agent)
    await flooder.command()
    many = [Ack(id=command) if kind == "acks" else Chunk(id=command, n=n, kind="k", payload=b"") for n in range(count)]
    began = time.monotonic()
    sending = asyncio.create_task(flooder.send(*many))
    stored = 0
    try:
        async with asyncio.timeout(5):
            while stored < count:
                stored = (await flooder.expect(Rx)).s
    except TimeoutError:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    burst, slices = 10 * rate, 2 * SLICE
    assert 0 < stored <= burst + rate * (time.monotonic() - began + 1) + slices


async def test_messages_waiting_for_redis_share_a_limit_for_all_links(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    """Twenty agents with half a megabyte of events each, while Redis is frozen: the node keeps no more than its limit
    and a read of each link; when Redis is back all of it is stored."""
    gateway = make_gateway(own_valkey.url, "--pending-limit", str(MIB))
    agents = [await dial(gateway) for _ in range(20)]
    for agent in agents:
        await agent.greet()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    sending = [
        asyncio.create_task(
            agent.send(*(Event(id=f"{agent.agent}-{n}", type="t", payload=bytes(30_000)) for n in range(18)))
        )
        for agent in agents
    ]
    async with asyncio.timeout(20):
        while await metric(gateway, "fairlead_pending_bytes") < MIB * 3 / 4:
            await asyncio.sleep(0.05)
    most = MIB + len(agents) * (256 << 10)
    for _ in range(10):
        assert await metric(gateway, "fairlead_pending_bytes") <= most
    os.kill(own_valkey.pid, signal.SIGCONT)
    for agent in agents:
        while (await agent.expect(Rx)).s < 18:
            pass
    await asyncio.gather(*sending)
    assert await metric(gateway, "fairlead_pending_bytes") == 0
