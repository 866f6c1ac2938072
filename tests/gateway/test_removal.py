"""Agents that left are removed: on request, or after they were absent for `forget_after`."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from redis import asyncio as redis_async

from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.directory_replies import Claimed
from fairlead.fleet.schema import agent_key, open_key
from fairlead.node import Node
from fairlead.routing.agents.index_sweeper import ROUND_MS, IndexSweeper
from fairlead.settings import Settings
from fairlead.shards import SHARDS, agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer, items, octets
from fairlead.telemetry.metrics import Metrics
from fairlead.wire.messages import Ack, End, Event, Rx

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

FAR_MS = 3600_000


async def test_an_agent_that_left_is_deleted_with_all_its_data(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer, other = await dial(gateway), await dial(gateway)
    for one in (peer, other):
        await one.greet(facts={"os": "linux"})
        for n in range(70):  # more than one step goes through
            await one.send(Event(type="t", qos=1, id=f"{one.agent}-{n}", time=1, payload=b"{}"))
        await one.expect(Rx)
    url = f"/v1/agents/{peer.agent}"
    await api.http.patch(url, json={"labels": {"env": "prod"}})
    running = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=running))
    refused = await api.http.delete(url)
    assert (refused.status_code, refused.json()["code"]) == (409, "agent_online")
    assert (await api.agent(peer.agent))["labels"] == {"env": "prod"}

    async def stored() -> bool:
        return bool(await store.submit("XLEN", "fl1:events") == 140)

    await until(stored)
    await peer.socket.close()

    async def away() -> bool:
        return bool((await api.agent(peer.agent))["state"] == "away")

    await until(away)
    waiting = await api.start(peer.agent, on_offline={"queue": 60})
    answer = await api.http.delete(url)
    assert (answer.status_code, answer.json()) == (200, {"id": peer.agent, "commands": 2, "events": 70})
    assert (await api.http.get(url)).json()["code"] == "agent_unknown"
    assert (await api.http.delete(url)).status_code == 404
    assert [agent["id"] for agent in (await api.http.get("/v1/agents")).json()["agents"]] == [other.agent]
    for key in (agent_key(peer.agent), open_key(peer.agent)):
        assert await store.submit("EXISTS", key) == 0
    assert await store.submit("XLEN", "fl1:events") == 70
    ends = [await api.end(command) for command in (running, waiting)]
    assert [(end["state"], end["error"]["code"]) for end in ends] == [
        ("failed", "outcome_unknown"), ("cancelled", "agent_deleted"),
    ]  # fmt: skip
    again = await dial(gateway, peer.agent)
    await again.greet(conn=2)
    assert (await api.agent(peer.agent))["labels"] == {}


def _sweeper(node: Node, metrics: Metrics) -> IndexSweeper:
    builder = ColumnBuilder(node._store, node.directory)
    return IndexSweeper(node.directory, builder, node.routing.removal, node.membership, metrics)


def _agents_aside(node: Node, *kinds: str) -> list[str]:
    """Agents of one shard, which the sweeper of the node itself does not come to soon."""
    shard = (node.membership.now() // ROUND_MS + SHARDS // 2) % SHARDS
    return [next(one for n in itertools.count() if agent_shard(one := f"{kind}{n}") == shard) for kind in kinds]


@pytest.mark.parametrize("forget_after", [0.5, 0.0])
async def test_the_sweep_forgets_only_agents_that_were_away_for_long(
    own_valkey: EmbeddedValkey, forget_after: float
) -> None:
    """An agent whose node died counts as absent from the time when that is noted, however long ago it was linked."""
    async with Node(Settings(node="sweeper", forget_after=forget_after), own_valkey.url) as node:
        directory, sweep = node.directory, _sweeper(node, node.metrics)
        left, orphan, linked = _agents_aside(node, "left-", "orphan-", "linked-")
        leases = {left: node.membership.lease, orphan: "dead#1", linked: node.membership.lease}
        for agent, lease in leases.items():
            far = node.membership.now() + FAR_MS
            assert isinstance(await directory.claim(agent, lease, "boot", 1, f"sid {agent}", b"{}", far), Claimed)
        assert await directory.release(left, f"sid {left}", 1000, False, "")
        before = await directory.look_up(orphan)
        assert before is not None
        await asyncio.sleep(0.6)  # longer than `forget_after`
        for shard in {agent_shard(agent) for agent in leases}:
            await sweep.sweep(shard)
        noted = await directory.look_up(orphan)
        assert noted is not None
        assert noted.seen >= before.seen + 600
        assert (await directory.look_up(left) is None) is bool(forget_after)
        await asyncio.sleep(0.6)
        for shard in {agent_shard(agent) for agent in leases}:
            await sweep.sweep(shard)
        assert (await directory.look_up(orphan) is None) is bool(forget_after)
        assert await directory.look_up(linked) is not None
        left_over = {agent for shard in range(SHARDS) for agent in await directory.index_page(shard, "", 10)}
        assert left_over == ({linked} if forget_after else set(leases))


async def test_a_row_that_cannot_be_read_does_not_end_the_sweep_of_its_shard(
    own_valkey: EmbeddedValkey, caplog: pytest.LogCaptureFixture
) -> None:
    """One row has another type, one has a time that is no number: both are skipped, logged once and counted each
    time. The one of another type is removed, and the next sweep finds no row."""
    async with Node(Settings(node="sweeper", forget_after=0.5), own_valkey.url) as node:
        metrics = Metrics()
        directory, sweep = node.directory, _sweeper(node, metrics)
        foreign, broken, behind = _agents_aside(node, "a", "b", "c")
        shard = agent_shard(foreign)
        # Otherwise the node does so within seconds of its start, and finds the row of another type before the sweep.
        await ColumnBuilder(node._store, directory).build(shard)
        far = node.membership.now() + FAR_MS
        for agent in (foreign, broken, behind):
            assert isinstance(
                await directory.claim(agent, node.membership.lease, "boot", 1, agent, b"{}", far), Claimed
            )
            assert await directory.release(agent, agent, 1000, False, "")
        async with redis_async.from_url(own_valkey.url) as redis:
            await redis.delete(agent_key(foreign))
            await redis.set(agent_key(foreign), "of another type")
            await redis.hset(agent_key(broken), "seen", "yesterday")
            await asyncio.sleep(0.6)  # longer than `forget_after`
            await sweep.sweep(shard)
            assert foreign in await directory.index_page(shard, "", 10)
            async with asyncio.timeout(30):
                while await redis.exists(agent_key(foreign)):
                    await asyncio.sleep(0.01)
        await sweep.sweep(shard)
        assert await directory.index_page(shard, "", 10) == [broken], "the others are forgotten"
    assert [agent_key(agent) in caplog.text for agent in (foreign, broken)] == [True, True]
    assert caplog.text.count("the sweep skips") == 2
    assert metrics.registry.get_sample_value("fairlead_index_rows_skipped_total") == 3


async def test_every_redis_key_has_an_expiry_or_an_owner(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, shared_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send_output(command, 0, "x")
    await api.http.post(f"/v1/commands/{command}/input?n=0", content=b"y")
    await api.http.post("/v1/commands", json={"agent": peer.agent, "method": "m"}, headers={"idempotency-key": "k"})
    await peer.send(End(id=command, total=1))
    await api.end(command)
    store = await redis_of(shared_valkey)
    owned = (
        "fl1:nodes",
        "fl2:agent:",
        "fl1:agents:",
        "fl1:columns:",
        "fl1:cells:",
        "fl2:deadlines:",
        "fl1:events",
        "fl1:data_epoch",
        "fl1:compared_server",
    )
    for key in map(octets, items(await store.submit("KEYS", "*"))):
        if not key.decode().startswith(owned):
            assert integer(await store.submit("PTTL", key)) > 0, key
