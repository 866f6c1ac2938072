"""With `durability` replicated, a primary of a Cluster whose replica is away is felt by its agents alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from gateway.test_primaries_lost_at_once import agent_on

from fairlead.fleet import schema
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.cluster import Cluster
from support.waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "servers")
    try:
        await made.start()
        yield made
    finally:
        made.stop()


async def test_agents_of_a_primary_without_a_replica_wait_and_others_do_not(
    cluster: Cluster, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    gateway = make_gateway(cluster.url, "--durability", "replicated")
    api = api_of(gateway)
    owner = await cluster.owner(schema.EVENTS)
    other = next(server for server in cluster.servers[:3] if server is not owner)
    here, elsewhere = [await dial(gateway, await agent_on(cluster, server)) for server in (other, owner)]
    for agent in (here, elsewhere):
        await agent.greet()
        await until(partial(works, api, agent))
    replica = cluster.servers[cluster.servers.index(other) + 3]
    replica.signal(signal.SIGSTOP)
    try:
        await until(lambda: is_told(api, here.agent))
        assert await metric(gateway, "fairlead_redis_unconfirmed") == 1
        await until(lambda: works(api, elsewhere))
        assert await is_told(api, here.agent)
    finally:
        replica.signal(signal.SIGCONT)
    await until(lambda: works(api, here))


async def is_told(api: GatewayApi, agent: str) -> bool:
    """Whether a post is refused because nothing of its primary is confirmed."""
    answer = await api.post({"agent": agent, "method": "work"})
    return answer.status_code == 503 and answer.json()["code"] == "not_confirmed"


async def works(api: GatewayApi, agent: ScriptedAgent) -> bool:
    """Whether a command is accepted; if it is, it must end."""
    answer = await api.post({"agent": agent.agent, "method": "work", "deadline": 120})
    if answer.status_code == 503:
        return False
    assert answer.status_code == 202, answer.text
    command = str(answer.json()["id"])
    while (await agent.expect(Cmd)).id != command:
        pass  # of a post whose answer was not confirmed
    await agent.send(Ack(id=command), End(id=command, total=0, state="ok"))
    async with asyncio.timeout(60):
        assert (await api.end(command))["state"] == "ok"
    return True
