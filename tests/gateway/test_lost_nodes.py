"""A node is killed, or the notifications to it are lost: its agents connect again, and their commands continue."""

from __future__ import annotations

import asyncio
import signal

from fairlead.bus.inbox import inbox_key
from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import text
from fairlead.wire.messages import Ack, Cancel, Chunk, End, Rx

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent


async def test_commands_survive_a_restart_of_the_node(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """kill -9 of the only node in mid-stream: the agent dials again and the stream goes on."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "before ")
    while (await peer.expect(Rx)).s < 2:
        pass
    gateway.signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait)
    gateway.start()
    again = await dial(gateway, peer.agent)
    welcome = await again.greet(conn=2)
    assert welcome.have == {command: 1}
    await again.send_output(command, 1, "after")
    await again.send(End(id=command, total=2))
    api = api_of(gateway)
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "before after"


async def test_a_command_posted_right_after_a_node_died_waits(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The agent is away, not offline, although it was claimed long ago and its node has joined again since."""
    holder = make_gateway(own_valkey.url)
    peer = await dial(holder)
    await peer.greet(conn=1)
    holder.signal(signal.SIGKILL)
    holder.wait()
    holder.start()
    api = api_of(holder)
    assert (await api.agent(peer.agent))["state"] == "away"
    command = await api.start(peer.agent)
    again = await dial(holder, peer.agent)
    await again.greet(conn=2)
    assert (await again.command()).id == command


async def test_lost_doorbells_only_cost_time(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """The inbox of the agent's node is missing when it is rung: for a command, for its input, for its cancel."""
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, store = api_of(other), await redis_of(own_valkey)
    peer = await dial(holder)
    await peer.greet()
    inbox = inbox_key(text(await store.submit("HGET", agent_key(peer.agent), "lease")))

    await store.submit("UNLINK", inbox)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await store.submit("UNLINK", inbox)
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"hello")
    assert (await peer.expect(Chunk)).payload == b"hello"
    await store.submit("UNLINK", inbox)
    await api.http.delete(f"/v1/commands/{command}")
    await peer.expect(Cancel)
    await peer.send(End(id=command, total=0, state="cancelled"))
    assert (await api.end(command))["state"] == "cancelled"
