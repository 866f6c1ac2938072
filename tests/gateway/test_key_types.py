"""Somebody writes a value of another type under a key of Fairlead: the log names it, and everything else goes on."""

from __future__ import annotations

import re

import pytest
import websockets

from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.fleet.schema import agent_key, deadlines_key, index_key, node_key
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer, items, text
from fairlead.wire.messages import Ack, End

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

SHARED = (
    schema.DATA_EPOCH, schema.NODES, schema.REVISION, schema.REBALANCE, schema.DISCONNECT, schema.MOVES, schema.EVENTS,
    schema.SERVICE_TOKENS, schema.ENROLMENT_TOKENS,
    *map(index_key, range(SHARDS)), *map(deadlines_key, range(SHARDS)),
)  # fmt: skip
"""The keys that all nodes share, or all agents and commands of a shard."""


def test_types_are_those_of_the_drawing() -> None:
    assert schema.__doc__ is not None
    drawn = dict(
        re.findall(r"^(fl\d:\w+)\S*(?: by)? +(hash|zset|set|string|stream|list) ", schema.__doc__, re.MULTILINE)
    )
    assert drawn == schema.KEY_TYPES
    for key in (*SHARED, node_key("n"), agent_key("a"), inbox_key("n#e")):
        assert schema.key_type(key) in ("hash", "zset", "string", "stream")
    assert schema.key_type("fl1:other:{a}") is None
    assert schema.key_type("another") is None


@pytest.mark.timeout(180)
async def test_shared_keys_of_another_type_are_removed_and_commands_go_on(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:
    first, second = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, store = api_of(second), await redis_of(own_valkey)
    peer = await dial(first)
    await peer.greet()
    planted = [*SHARED, node_key("node-1")]
    planted += [text(key) for key in items(await store.submit("KEYS", "fl1:inbox:*"))]
    for key in planted:
        await store.submit("DEL", key)
        await store.submit("RPUSH", key, "a note")

    async def command_ends() -> bool:
        answer = await api.post({"agent": peer.agent, "method": "m"})
        if answer.status_code != 202:
            return False
        command = answer.json()["id"]
        assert (await peer.command()).id == command
        await peer.send(Ack(id=command), End(id=command, total=0))
        return bool((await api.end(command))["state"] == "ok")

    async def used_keys_are_ours_again() -> bool:
        used = [schema.DATA_EPOCH, schema.NODES, schema.REVISION, schema.REBALANCE, schema.DISCONNECT]
        used.append(schema.SERVICE_TOKENS)
        return "list" not in [text(await store.submit("TYPE", key)) for key in [*used, *planted[len(SHARED) :]]]

    await until(used_keys_are_ours_again)
    await until(command_ends)
    for api_url in (first.admin, second.admin):  # no loop of a node has ended
        assert (await api.http.get(f"{api_url}/readyz")).status_code == 200

    async def new_agent_is_linked() -> bool:
        try:
            await (await dial(second, "new")).greet()
        except websockets.ConnectionClosed:  # its claim has found the index of its shard, which is removed for that
            return False
        return bool((await api.agent("new"))["state"] == "online")

    await until(new_agent_is_linked)
    assert integer(await store.submit("ZCARD", schema.NODES)) == 2
    log = first.log() + second.log()
    for key in (schema.NODES, schema.DATA_EPOCH, schema.REBALANCE, node_key("node-1")):
        assert f"the key {key} in Redis held a list, which is not Fairlead's" in log


async def test_agent_whose_row_is_of_another_type_harms_nobody_else_and_connects_again(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    good, bad = await dial(gateway), await dial(gateway)
    await good.greet()
    await store.submit("SET", agent_key(bad.agent), "a note")
    with pytest.raises(websockets.ConnectionClosedError, match="could not register this agent"):
        await bad.greet()
    command = await api.start(good.agent)
    assert (await good.command()).id == command
    again = await dial(gateway, bad.agent)
    await again.greet()
    assert (await api.agent(bad.agent))["state"] == "online"
    assert agent_key(bad.agent) in gateway.log()


async def test_node_joins_although_a_key_is_of_another_type(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf
) -> None:
    store = await redis_of(own_valkey)
    for key in (schema.NODES, node_key("node-1")):
        await store.submit("SET", key, "a note")
    assert "node-1" in make_gateway(own_valkey.url, name="node-1").log()


async def test_an_agent_whose_index_was_of_another_type_is_listed_again_when_it_comes_back(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    index = index_key(agent_shard(peer.agent))
    await store.submit("DEL", index)
    await store.submit("SET", index, "a note")

    async def is_removed() -> bool:
        await api.http.get("/v1/agents")
        return text(await store.submit("TYPE", index)) != "string"

    await until(is_removed)
    await peer.socket.close()
    again = await dial(gateway, peer.agent)
    await again.greet(boot="boot-2")
    answer = await api.http.get("/v1/agents")
    assert [one["id"] for one in answer.json()["agents"]] == [peer.agent], answer.text
