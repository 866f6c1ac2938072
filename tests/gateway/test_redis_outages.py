"""Redis is frozen, killed or unreachable: nothing acknowledged is lost, callers learn what happened, links stay."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
import websockets

from fairlead.fleet import schema
from fairlead.fleet.node_table import AWAY_MS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, End, Rx

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import WAIT, until


async def test_valkey_frozen_while_agents_connect(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """Valkey does not answer for 12 s: afterwards every agent is online, and none was told to stay away."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    old = [await dial(gateway) for _ in range(5)]
    await asyncio.gather(*(peer.greet() for peer in old))
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        new = await asyncio.gather(*(dial(gateway) for _ in range(40)))
        welcomes = [asyncio.ensure_future(peer.greet()) for peer in new]
        # One that gives up and dials again, as an agent with less patience does.
        restless = await dial(gateway)
        first = asyncio.ensure_future(restless.greet(conn=1))
        await asyncio.sleep(6)
        first.cancel()
        await restless.socket.close()
        again = await dial(gateway, restless.agent)
        welcomes.append(asyncio.ensure_future(again.greet(conn=2)))
        answer = await api.post({"agent": old[0].agent, "method": "m"})
        assert (answer.status_code, answer.json()["code"]) == (503, "bus_unavailable")
        await asyncio.sleep(6)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await asyncio.gather(*welcomes)
    for peer in (*old, *new, again):
        assert (await api.agent(peer.agent))["state"] == "online"
        command = await api.start(peer.agent)
        assert (await peer.command()).id == command
        await peer.send(Ack(id=command), End(id=command, total=0))
        assert (await api.end(command))["state"] == "ok"
    metrics = (await api.http.get(f"{gateway.admin}/metrics")).text
    assert not any(f'code="{code}"' in metrics for code in range(4500, 5000))


async def test_valkey_killed_under_traffic(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """Links stay, commands are refused, the fleet recovers within 10 s, and everything acknowledged is still there."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peers = [await dial(gateway) for _ in range(4)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    commands = [await api.start(peer.agent, deadline=120) for peer in peers]
    acknowledged = [0] * len(peers)
    sent = [0] * len(peers)
    stop = asyncio.Event()

    async def talk(i: int) -> None:
        """Send chunks as far as the receipts allow, and count the receipts."""
        peer, command = peers[i], commands[i]
        await peer.command()
        await peer.send(Ack(id=command))
        while not (stop.is_set() and acknowledged[i] == sent[i] + 1):
            if not stop.is_set() and sent[i] < acknowledged[i] + 50:
                await peer.send_output(command, sent[i], f"{sent[i]}\n")
                sent[i] += 1
            try:
                async with asyncio.timeout(0.01):
                    acknowledged[i] = (await peer.expect(Rx)).s
            except TimeoutError:
                pass
        await peer.send(End(id=command, total=sent[i]))

    talking = [asyncio.ensure_future(talk(i)) for i in range(len(peers))]
    while min(acknowledged) < 100:
        await asyncio.sleep(0.05)
    os.kill(own_valkey.pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    refused = []
    for _ in range(5):
        async with asyncio.timeout(WAIT):
            answer = await api.post({"agent": peers[0].agent, "method": "m"})
        refused.append((answer.status_code, answer.json()["code"]))
    # The first may have been on its way to Redis before the node saw the end of the connection.
    assert refused[0] in {(503, "outcome_unknown"), (503, "bus_unavailable")}
    assert refused[1:] == [(503, "bus_unavailable")] * 4
    before = list(acknowledged)
    await own_valkey.restart()
    healed = loop.time() + 10
    while any(now < then + 50 for now, then in zip(acknowledged, before, strict=True)):
        assert loop.time() < healed, "not recovered within 10 s"
        await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*talking)
    ends = [await api.end(command) for command in commands]
    assert [end["state"] for end in ends] == ["ok"] * len(peers)
    store = await redis_of(own_valkey)
    for i, command in enumerate(commands):
        assert ends[i]["total"] == sent[i]
        assert await store.submit("XLEN", schema.out_key(command)) == sent[i]
        assert await api.output(command) == "".join(f"{n}\n" for n in range(sent[i]))
    assert all(peer.socket.state is websockets.State.OPEN for peer in peers)


async def test_a_fast_agent_cannot_fill_memory(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """With Valkey frozen, an honest agent stops at its window and goes on afterwards."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    cmd = await peer.command()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    count = cmd.credit // 32_768
    for n in range(count):
        await peer.send(Chunk(id=command, n=n, kind="stdout", payload=b"x" * 32_768))
    await asyncio.sleep(2)  # the outage itself: long enough for the store's time-out and its breaker
    os.kill(own_valkey.pid, signal.SIGCONT)
    await peer.send(End(id=command, total=count))

    async def over() -> bool:
        answer = await api.http.get(f"/v1/commands/{command}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "ok")

    await until(over)
    assert len(await api.output(command)) == count * 32_768


@pytest.mark.timeout(120)
async def test_after_a_long_outage_no_linked_agent_is_reported_offline(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """Each node comes back at its own time. Until then the others know nothing of its agents, and say so."""
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(holder)
    await peer.greet()
    holder.signal(signal.SIGSTOP)  # it comes back later than the other
    os.kill(own_valkey.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 75
    while True:  # until the other node, too, has been cut off for longer than an agent counts as away
        if await metric(other, "fairlead_heartbeat_age_seconds") * 1000 > AWAY_MS + 1_000:
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    os.kill(own_valkey.pid, signal.SIGCONT)
    while (answer := await api.post({"agent": peer.agent, "method": "work"})).status_code == 503:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert answer.status_code == 202, answer.text
    assert answer.json()["presence"] == "away"
    holder.signal(signal.SIGCONT)
    assert (await peer.command()).id == answer.json()["id"]


async def test_links_are_closed_when_redis_stays_unreachable(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:  # fmt: skip
    holder = make_gateway(own_valkey.url, "--bus-grace", "3")
    peer = await dial(holder)
    await peer.greet()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert await peer.close_code() == CloseCode.BUS_AWAY
    assert time.monotonic() - began >= 2


async def test_links_are_closed_little_by_little_and_the_rest_stay_when_redis_answers(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """A fleet that lost all links at one moment would come back at one moment, and overload a Redis that was slow."""
    holder = make_gateway(own_valkey.url, "--bus-grace", "3")
    peers = [await dial(holder) for _ in range(40)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    os.kill(own_valkey.pid, signal.SIGSTOP)
    codes = [asyncio.create_task(peer.close_code()) for peer in peers]
    try:
        closed, _ = await asyncio.wait(codes, timeout=3 * WAIT, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in closed} == {CloseCode.BUS_AWAY}
        os.kill(own_valkey.pid, signal.SIGCONT)

        async def back() -> bool:
            return await metric(holder, "fairlead_heartbeat_age_seconds") < 2

        await until(back)
        left = await metric(holder, "fairlead_agents")
        assert 20 <= left < 40
        assert len((await api_of(holder).http.get("/v1/agents", params={"state": "online"})).json()["agents"]) == left
    finally:
        for task in codes:
            task.cancel()
        await asyncio.gather(*codes, return_exceptions=True)
