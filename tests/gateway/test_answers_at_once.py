"""Answers to commands of the lane `bulk` that come from many agents at once: stored together, each as if by itself."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.fleet.schema import cmd_key
from fairlead.shards import agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Event, Rx

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

SHARD = 3
NAMES = [name for name in (f"crowd-{n}" for n in range(10_000)) if agent_shard(name) == SHARD][:12]
LARGE = 60 << 10
"""Bytes, more than answers have that wait for others."""


async def asked(api: GatewayApi, peer: ScriptedAgent) -> Cmd:
    command = await api.start(peer.agent, lane="bulk")
    sent = await peer.command()
    assert sent.id == command
    return sent


async def answer(peer: ScriptedAgent, command: str, text: str) -> None:
    await peer.send(
        Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=text.encode()), End(id=command, total=1)
    )


async def receipts(peer: ScriptedAgent, numbered: int) -> None:
    """Wait for the receipt for so many messages, and no more."""
    stored = 0
    while stored < numbered:
        stored = (await peer.expect(Rx)).s
    assert stored == numbered


async def test_each_answer_is_stored_and_confirmed_whatever_else_its_agent_sends(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    api = api_of(gateway)
    peers = [await dial(gateway, name) for name in NAMES]
    for peer in peers:
        await peer.greet()
    commands = [(await asked(api, peer)).id for peer in peers]
    second = (await asked(api, peers[1])).id
    await store.submit("CLIENT", "PAUSE", 300, "ALL")  # so that most wait for the first of them
    sent = {peer.agent: 3 for peer in peers}
    for peer, command in zip(peers, commands, strict=True):
        await answer(peer, command, "x" * LARGE if peer is peers[2] else peer.agent)
    await answer(peers[1], second, "second")
    await peers[3].send(Event(id="e-1", type="t"))
    sent |= {peers[1].agent: 6, peers[3].agent: 4}
    await asyncio.gather(*(receipts(peer, sent[peer.agent]) for peer in peers))
    for peer, command in zip(peers, commands, strict=True):
        assert (await api.end(command))["state"] == "ok"
        assert await api.output(command) == ("x" * LARGE if peer is peers[2] else peer.agent)
    assert await api.output(second) == "second"


async def test_output_that_goes_on_is_stored_in_order(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peers = [await dial(gateway, name) for name in NAMES[:4]]
    for peer in peers:
        await peer.greet()
    commands = [(await asked(api, peer)).id for peer in peers]
    for n in range(40):
        for peer, command in zip(peers, commands, strict=True):
            await peer.send_output(command, n, f"{n} ")
    for peer, command in zip(peers, commands, strict=True):
        await peer.send(End(id=command, total=40))
    await asyncio.gather(*(receipts(peer, 41) for peer in peers))
    for command in commands:
        assert await api.output(command) == "".join(f"{n} " for n in range(40))


async def test_an_answer_that_cannot_be_stored_keeps_no_other_from_it(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    api = api_of(gateway)
    peers = [await dial(gateway, name) for name in NAMES]
    for peer in peers:
        await peer.greet()
    commands = [(await asked(api, peer)).id for peer in peers]
    await store.submit("DEL", cmd_key(commands[5]))
    await store.submit("RPUSH", cmd_key(commands[5]), "a note")
    await store.submit("DEL", cmd_key(commands[6]))
    await store.submit("CLIENT", "PAUSE", 300, "ALL")
    for peer, command in zip(peers, commands, strict=True):
        await answer(peer, command, peer.agent)
    others = [n for n in range(len(peers)) if n != 5]
    await asyncio.gather(*(receipts(peers[n], 3) for n in others))
    assert await peers[5].close_code() == CloseCode.INTERNAL
    for n in others:
        if n != 6:
            assert (await api.end(commands[n]))["state"] == "ok"
    assert (await api.http.get(f"/v1/commands/{commands[6]}")).status_code == 404


@pytest.mark.timeout(120)
async def test_answers_outlive_a_redis_that_is_away(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    api = api_of(gateway)
    peers = [await dial(gateway, name) for name in NAMES]
    for peer in peers:
        await peer.greet()
    commands = [(await asked(api, peer)).id for peer in peers]
    await store.submit("CLIENT", "PAUSE", 2_500, "ALL")  # longer than a node waits for a reply
    for peer, command in zip(peers, commands, strict=True):
        await answer(peer, command, peer.agent)
    await asyncio.gather(*(receipts(peer, 3) for peer in peers))
    for peer, command in zip(peers, commands, strict=True):
        assert (await api.end(command))["state"] == "ok"
        assert await api.output(command) == peer.agent
