"""Slow work gives way: lists of the whole fleet, or a site that reconnects, delay no post and no heartbeat."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from fairlead.fleet.command_record import NewRecord
from fairlead.fleet.commands import Commands
from fairlead.fleet.directory import Directory
from fairlead.shards import of_agent
from fairlead.store.backlog import LIMITS, Priority
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.ids import uuid7

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent

pytestmark = pytest.mark.timeout(240)


async def _post_until(api: GatewayApi, agent: str, done: asyncio.Task[object]) -> int:
    """Post commands one after the other for as long as `done` is not; none may find a full backlog, or a node without a
    heartbeat. How many were taken. On a machine that is short of CPU a post may find that its second is over."""
    count = 0
    while not done.done() or count < 5:
        answer = await api.http.post("/v1/commands", json={"agent": agent, "method": "work", "deadline": 30})
        assert answer.status_code == 202 or "too late" in answer.json()["detail"], answer.text
        count += answer.status_code == 202
        await asyncio.sleep(0.02)
    return count


async def _nothing_was_missed(api: GatewayApi, gateway: GatewayProcess) -> None:
    figures = {}
    for line in (await api.http.get(gateway.admin + "/metrics")).text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            figures[name] = float(value)
    assert figures["fairlead_node_fenced_total"] == figures["fairlead_redis_errors_total"] == 0
    assert figures["fairlead_heartbeat_age_seconds"] < 15
    backlog = {name for name in figures if name.startswith("fairlead_redis_backlog")}
    assert backlog == {f'fairlead_redis_backlog{{priority="{priority.label}"}}' for priority in Priority}


async def test_lists_of_all_agents_do_not_delay_posts(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    directory, now = Directory(store), int(time.time() * 1000)
    for start in range(0, 2_000, 200):
        claims = [
            directory.claim(f"agent-{i}", "gone#1", "b", 1, f"s{i}", b'{"os":"linux"}', now + 600_000)
            for i in range(start, start + 200)
        ]
        for claim in claims:
            await claim
    peer = await dial(gateway)
    await peer.greet()

    async def listed() -> None:
        for _ in range(3):
            answer = await api.http.get("/v1/agents?limit=1000&selector=os%3Dplan9")
            assert answer.status_code == 200, answer.text

    listers = asyncio.gather(*(listed() for _ in range(12)))
    lists = asyncio.create_task(asyncio.wait_for(listers, 120))
    await _post_until(api, peer.agent, lists)
    await lists
    await _nothing_was_missed(api, gateway)


async def test_a_returning_site_with_queued_commands_does_not_delay_posts(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """More fences are due at once than calls of their priority may wait, before any of the agents is welcomed."""
    gateway = make_gateway(own_valkey.url, "--accept-rate", "5000")
    api, store = api_of(gateway), await redis_of(own_valkey)
    directory, records = Directory(store), Commands(store, 1 << 24)
    agents, queued, now = 12, 800, int(time.time() * 1000)
    assert agents * queued > LIMITS[Priority.BACKGROUND].waiting
    for number in range(agents):
        name = f"site-{number}"
        made: list[Any] = [directory.claim(name, "", "b", 1, f"s{number}", b"{}", now + 600_000)]
        for _ in range(queued):
            command = of_agent(uuid7(now, random.randbytes(10)), name)
            record = NewRecord(command, name, "work", b"{}", "interactive", now, now + 600_000, 600_000, now + 600_000)
            made.append(records.accept(record, now + 600_000, now + 600_000, unknown=True))
        for call in made:
            await call
    innocent = await dial(gateway)
    await innocent.greet()

    async def back(number: int) -> int:
        peer = await dial(gateway, f"site-{number}", open_timeout=100)
        await peer.greet()
        return len({(await peer.command()).id for _ in range(20)})

    returning = asyncio.gather(*(back(n) for n in range(agents)))
    site = asyncio.create_task(asyncio.wait_for(returning, 200))
    await _post_until(api, innocent.agent, site)
    assert await site == [20] * agents
    await _nothing_was_missed(api, gateway)
