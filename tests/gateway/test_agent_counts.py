"""Counts and lists over the API: they follow facts and labels, and have nobody whom the caller may not see."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from fairlead.fleet.columns.agent_columns import AgentColumns
from fairlead.fleet.directory import Directory
from fairlead.fleet.selector import parse
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import ROLES, caller_of, write_roles
from support.gateway.scripted_agent import DialAgent

SPOTTER = """\
  spotter:
    - verbs: [view]
      ids: [named-*]
bindings:
  - {tokens: [spotter], roles: [spotter]}
"""


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("counts")
    write_roles(folder / "roles.yaml", ROLES.replace("bindings:\n", SPOTTER))
    process = GatewayProcess(folder, shared_valkey.url, ("--roles", str(folder / "roles.yaml")))
    process.start()
    yield process
    process.stop()


async def counted(api: GatewayApi, **query: str) -> int:
    answer = await api.http.get("/v1/agents", params={"limit": 1, "count": "true", **query})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["count"])


async def columns_ready(store: Pipeliner, selector: str) -> None:
    """Until all columns are built: a new node does so within seconds."""
    columns = AgentColumns(store, Directory(store))
    async with asyncio.timeout(90):
        while [part async for part in columns.counts("", parse(selector)) if part.open]:
            await asyncio.sleep(0.1)


@pytest.mark.timeout(180)
async def test_counts_follow_facts_labels_and_removals(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, redis_of: RedisOf, shared_valkey: EmbeddedValkey
) -> None:
    fleet = secrets.token_hex(4)
    peers = [await dial(gateway) for _ in range(5)]
    for n, peer in enumerate(peers):
        await peer.greet(facts={"fleet": fleet, "os": "linux", "os.version": str(9 + n)})
    mine = f"fleet={fleet}"
    assert await counted(api, selector=mine) == 5, "whether or not the columns are built"
    await columns_ready(await redis_of(shared_valkey), mine)
    assert await counted(api, selector=mine) == 5
    assert await counted(api, selector=f"{mine},os.version<12") == 3
    assert await counted(api, selector=f"{mine},!drained") == 5
    labelled = await api.http.patch(f"/v1/agents/{peers[0].agent}", json={"labels": {"drained": "yes"}})
    assert labelled.status_code == 200, labelled.text
    assert await counted(api, selector=f"{mine},!drained") == 4
    assert await counted(api, selector=f"{mine},!drained", state="online") == 4
    await api.http.patch(f"/v1/agents/{peers[0].agent}", json={"labels": {"drained": None}})
    assert await counted(api, selector=f"{mine},!drained") == 5
    again = await dial(gateway, agent=peers[1].agent)
    await again.greet(boot="boot-2", facts={"fleet": fleet, "os": "linux", "os.version": "22.04"})
    assert await counted(api, selector=f"{mine},os.version<12") == 2
    await peers[2].socket.close()
    async with asyncio.timeout(30):
        while (await api.http.delete(f"/v1/agents/{peers[2].agent}")).status_code == 409:
            await asyncio.sleep(0.05)
    assert await counted(api, selector=mine) == 4
    assert await counted(api, selector=mine, state="offline") == 0
    without = await api.http.get("/v1/agents", params={"selector": mine})
    assert (len(without.json()["agents"]), without.json()["count"]) == (4, None)
    assert (await api.http.get("/v1/agents", params={"count": "yes"})).status_code == 422


@pytest.mark.timeout(180)
async def test_a_count_has_nobody_whom_the_caller_may_not_see(
    gateway: GatewayProcess,
    api: GatewayApi,
    api_of: MakeGatewayApi,
    dial: DialAgent,
    redis_of: RedisOf,
    shared_valkey: EmbeddedValkey,
) -> None:
    fleet = secrets.token_hex(4)
    envs = ("dev", "dev", "prod")
    peers = [await dial(gateway, agent=f"named-{fleet}"), *[await dial(gateway) for _ in range(2)]]
    for peer, env in zip(peers, envs, strict=True):
        await peer.greet(facts={"fleet": fleet, "env": "dev"})  # it says what it likes
        await api.http.patch(f"/v1/agents/{peer.agent}", json={"labels": {"env": env}})
    mine = f"fleet={fleet}"
    await columns_ready(await redis_of(shared_valkey), mine)
    looker, named = await caller_of(api_of, gateway, "looker"), await caller_of(api_of, gateway, "spotter")
    assert await counted(api, selector=mine) == 3
    assert await counted(looker, selector=mine) == 2
    assert await counted(looker, selector=f"{mine},label.env=prod") == 0
    assert await counted(looker, selector=f"{mine},fact.env=dev") == 2
    assert await counted(named, selector=mine) == 1
    assert await counted(named, selector=mine, state="online") == 1
