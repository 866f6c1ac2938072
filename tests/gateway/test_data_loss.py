"""Redis loses all its data while agents stay linked: their facts come back, and lists wait until they are complete."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import FACTS_LIMIT

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent


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
