"""Redis loses all its data while agents stay linked: their facts come back, and lists wait until they are complete."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
import websockets

from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import FACTS_LIMIT, Ack, Cancel, Cmd, End, Rx

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def listed(api: GatewayApi, selector: str) -> httpx2.Response:
    return await api.http.get("/v1/agents", params={"selector": selector})


def names(answer: httpx2.Response) -> list[str]:
    return sorted(agent["id"] for agent in answer.json()["agents"])


@pytest.mark.timeout(120)
async def test_facts_return_lists_wait_and_lost_labels_are_reported(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    holder, other = make_gateway(own_valkey.url, name="node-1"), make_gateway(own_valkey.url, name="node-2")
    api, store = api_of(other), await redis_of(own_valkey)
    prod, dev = await dial(holder), await dial(other)
    for peer, env in ((prod, "prod"), (dev, "dev")):
        await peer.greet(facts={"os": "linux", "rack": peer.agent})
        await api.http.patch(f"/v1/agents/{peer.agent}", json={"labels": {"env": env}})
    both = sorted((prod.agent, dev.agent))
    assert names(await listed(api, "os=linux")) == both
    assert names(await listed(api, "env!=prod")) == [dev.agent]
    await store.submit("FLUSHALL")
    answer = await listed(api, "os=linux")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "rebuilding", "5")
    async with asyncio.timeout(60):
        while (answer := await listed(api, "os=linux")).status_code == 503:  # never an answer that leaves some out
            await asyncio.sleep(0.1)
    assert names(answer) == both
    found = await api.agent(prod.agent)
    assert (found["facts"], found["labels"]) == ({"os": "linux", "rack": prod.agent}, {})
    assert found["labels_lost"] is not None
    for selector in ("env!=prod", "!env", "label.env!=prod", "env=prod", "os=linux,env notin (dev)"):
        answer = await listed(api, selector)
        assert (names(answer), answer.json()["undecided"]) == ([], 2), selector
    metrics = (await api.http.get(f"{holder.admin}/metrics")).text
    assert "fairlead_labels_lost_total 1.0" in metrics
    await api.http.patch(f"/v1/agents/{prod.agent}", json={"labels": {"env": "prod"}})
    await api.http.patch(f"/v1/agents/{dev.agent}", json={"labels": {"env": "dev"}})
    assert (await api.agent(prod.agent))["labels_lost"] is None
    assert names(await listed(api, "env!=prod")) == [dev.agent]


async def test_facts_beyond_the_limit_are_refused_with_the_reason(
    gateway: GatewayProcess, dial: DialAgent, redis_of: RedisOf, shared_valkey: EmbeddedValkey
) -> None:
    store = await redis_of(shared_valkey)
    for size, taken in ((FACTS_LIMIT - 200, True), (FACTS_LIMIT + 200, False)):
        facts = {f"fact-{n:02}": "x" * 200 for n in range(size // 213)}
        facts["rest"] = "x" * max(1, size - len(facts) * 213)
        peer = await dial(gateway)
        if taken:
            await peer.greet(facts=facts)
        else:
            with pytest.raises(Exception, match="facts of") as refused:
                await peer.greet(facts=facts)
            assert f"max {FACTS_LIMIT}" in str(refused.value)
            assert await peer.close_code() == CloseCode.PROTOCOL
        assert await store.submit("EXISTS", agent_key(peer.agent)) == int(taken)


async def test_a_claim_that_redis_lost_is_made_again(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """A killed server comes back without its last second: rows say less than the links."""
    holder = make_gateway(own_valkey.url)
    api, store = api_of(holder), await redis_of(own_valkey)
    stale, gone = await dial(holder), await dial(holder)
    for peer in (stale, gone):
        await peer.greet()
    await store.submit("HSET", agent_key(stale.agent), "lease", "", "gen", 5, "sid", "older")
    await store.submit("DEL", agent_key(gone.agent))
    await store.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def online(agent: str) -> bool:
        answer = await api.http.get(f"/v1/agents/{agent}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    async with asyncio.timeout(20):
        while not (await online(stale.agent) and await online(gone.agent)):
            await asyncio.sleep(0.05)
    for peer in (stale, gone):
        command = await api.start(peer.agent)
        assert (await peer.expect(Cmd)).id == command


async def test_data_lost_by_redis_is_reported(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:
    holder = make_gateway(own_valkey.url)
    api, store = api_of(holder), await redis_of(own_valkey)
    peer = await dial(holder)
    await peer.greet()
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "x")
    await peer.expect(Rx)
    assert (await api.post({"agent": "never-seen", "method": "m"})).status_code == 404
    followed = asyncio.ensure_future(api.lines(command))

    async def following() -> bool:
        return await metric(holder, "fairlead_followers") == 1

    await until(following)
    await api.get(command)  # it is read after the follower has read what there is
    await store.submit("FLUSHALL")
    answer = await api.post({"agent": peer.agent, "method": "m"})
    assert answer.status_code == 202  # it waits until the agent is known again
    waiting = answer.json()["id"]
    await peer.send_output(command, 1, "y")
    assert (await peer.expect(Cancel)).id == command
    assert (await followed)[-1]["error"]["code"] == "record_lost"

    async def reported() -> bool:
        names = "fairlead_data_lost_total", "fairlead_agents_reclaimed_total", "fairlead_node_fenced_total"
        return [await metric(holder, name) for name in names] == [1, 1, 1]

    await until(reported)
    assert (await peer.expect(Cmd)).id == waiting
    assert (await api.post({"agent": "never-seen", "method": "m"})).json()["presence"] == "away"
    assert (await api.http.get("/v1/agents/never-seen")).status_code == 503
    gone = await api.http.get(f"/v1/commands/{command}")
    assert gone.status_code == 404
    assert "lost it with its data" in gone.json()["detail"]


async def test_an_emptied_valkey_is_filled_again(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    store = await redis_of(own_valkey)
    await store.submit("FLUSHALL")  # also this node's row: the node must notice that with its next heartbeat

    async def online() -> bool:
        answer = await api.http.get(f"/v1/agents/{peer.agent}")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    await until(online)
    command = await api.start(peer.agent)
    cmd = await peer.expect(Cmd)
    assert cmd.id == command
    await peer.send(Ack(id=command), End(id=command, total=0))
    assert (await api.end(command))["state"] == "ok"


async def test_a_node_whose_row_is_gone_claims_its_agents_again(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:
    """Only the row is deleted: what is known of the agents stays, and commands go on."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet(facts={"env": "prod"})
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    store = await redis_of(own_valkey)
    lease = await store.submit("HGET", agent_key(peer.agent), "lease")
    await store.submit("DEL", "fl1:node:{fl1:nodes}:node-1")

    async def claimed_again() -> bool:
        """Wait until the node has claimed the agents again under its new lease."""
        if await store.submit("HGET", agent_key(peer.agent), "lease") == lease:
            return False
        return bool((await api.agent(peer.agent))["state"] == "online")

    await until(claimed_again)
    assert (await api.agent(peer.agent))["facts"] == {"env": "prod"}
    await peer.send_output(command, 0, "still here")
    await peer.send(End(id=command, total=1))
    assert (await api.end(command))["state"] == "ok"
    after = await api.start(peer.agent)
    assert (await peer.command()).id == after
    assert peer.socket.state is websockets.State.OPEN
