"""Two nodes on one Valkey: any node reaches any agent, and losing one loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Cancel, Chunk, End, Rx

from support.fixtures import RedisOf
from support.gateway.lost_doorbells import lost_doorbells
from support.gateway.metrics import metric
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until


async def test_a_command_runs_through_the_other_node(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(holder)
    await peer.greet()
    assert (await api.agent(peer.agent))["node"] == "node-1"
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    followed = asyncio.ensure_future(api.lines(command))
    for n in range(50):
        await peer.send_output(command, n, f"{n}\n")
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"hello")
    assert (await peer.expect(Chunk)).payload == b"hello"
    await api.http.delete(f"/v1/commands/{command}")
    await peer.expect(Cancel)
    await peer.send(End(id=command, total=50, state="cancelled"))
    lines = await followed
    assert "".join(line.get("text", "") for line in lines) == "".join(f"{n}\n" for n in range(50))
    assert lines[-1]["end"]["state"] == "cancelled"


async def test_an_agent_moves_and_its_older_link_is_closed(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    one, two = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    first = await dial(one)
    await first.greet(conn=1)
    second = await dial(two, first.agent)
    await second.greet(conn=2)
    assert await first.close_code() == CloseCode.SUPERSEDED
    third = await dial(one, first.agent)
    await third.greet(boot="boot-2")
    assert await second.close_code() == CloseCode.REPLACED
    assert (await api_of(two).agent(first.agent))["node"] == "node-1"


async def test_the_node_of_the_agent_is_killed_and_the_stream_continues(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(holder)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    followed = asyncio.ensure_future(api.lines(command))
    for n in range(10):
        await peer.send_output(command, n, f"{n}\n")
    while (await peer.expect(Rx)).s < 11:
        pass
    holder.signal(signal.SIGKILL)
    again = await dial(other, peer.agent)
    welcome = await again.greet(conn=2)
    assert welcome.have == {command: 10}
    for n in range(10, 20):
        await again.send_output(command, n, f"{n}\n")
    await again.send(End(id=command, total=20))
    lines = await followed
    assert "".join(line.get("text", "") for line in lines) == "".join(f"{n}\n" for n in range(20))
    assert lines[-1]["end"]["state"] == "ok"


async def test_a_frozen_node_delivers_nothing_when_it_wakes(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """SIGSTOP, the agent moves with its command, SIGCONT: what the woken node still has is refused."""
    frozen, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(frozen)
    await peer.greet(conn=1)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.expect(Rx)
    frozen.signal(signal.SIGSTOP)
    await peer.send_output(command, 0, "stale ")  # stands in the frozen node's socket
    again = await dial(other, peer.agent)
    welcome = await again.greet(conn=2)
    assert welcome.have == {command: 0}
    await again.send_output(command, 0, "fresh ")
    await again.expect(Rx)
    frozen.signal(signal.SIGCONT)
    assert await peer.close_code() == CloseCode.SUPERSEDED
    await again.send_output(command, 1, "end")
    await again.send(End(id=command, total=2))
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "fresh end"


async def test_nodes_learn_at_once_which_nodes_join_and_leave(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """Not with their next heartbeat, up to 5 s later: until then an agent of a new node would be called away."""
    one = make_gateway(own_valkey.url, name="node-1")
    store = await redis_of(own_valkey)
    before = await store.submit("HGET", "fl1:node:{fl1:nodes}:node-1", "at")
    two = make_gateway(own_valkey.url, name="node-2")
    peer = await dial(two)
    await peer.greet()
    found = await api_of(one).agent(peer.agent)
    if await store.submit("HGET", "fl1:node:{fl1:nodes}:node-1", "at") == before:  # otherwise the heartbeat has told it
        assert (found["state"], found["node"]) == ("online", "node-2")


async def test_an_overtaken_link_is_recorded_by_its_own_node(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    one, two = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    first = await dial(one)
    await first.greet(conn=1)
    await (await dial(two, first.agent)).greet(conn=2)
    assert await first.close_code() == CloseCode.SUPERSEDED
    api = api_of(two)

    async def recorded() -> bool:
        found = await api.agent(first.agent)
        assert found["state"] == "online"
        return bool((found["last_close"] or "").startswith("4007"))

    await until(recorded)


async def test_input_arrives_although_its_doorbells_are_lost(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """The inbox of the agents' node is away for as long as the doorbells of the callers and of a sweep are sent."""
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, redis = api_of(other), await redis_of(own_valkey)
    peers = [await dial(holder) for _ in range(8)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    commands = [await api.start(peer.agent, deadline=300) for peer in peers]
    for peer, command in zip(peers, commands, strict=True):
        await peer.command()
        await peer.send(Ack(id=command))
    received = [asyncio.create_task(_input_of(peer)) for peer in peers]
    async with lost_doorbells(redis, peers[0].agent):
        for command in commands:
            answer = await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"hello")
            assert answer.status_code == 204

        # Each by its caller and by a sweep, unless the holder has swept it, which needs no inbox.
        async def swept() -> bool:
            return await metric(other, "fairlead_doorbells_lost_total") + sum(one.done() for one in received) >= 16

        await until(swept)
    async with asyncio.timeout(90):
        assert [await one for one in received] == [b"hello"] * 8


async def _input_of(peer: ScriptedAgent) -> bytes:
    while True:
        with contextlib.suppress(TimeoutError):  # the test has a deadline of its own
            return (await peer.expect(Chunk)).payload
