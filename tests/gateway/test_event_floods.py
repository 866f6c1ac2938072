"""An agent that floods displaces its own events and nobody else's; its readers are told, and so is the agent."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from fairlead.fleet import lua, schema
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import Reply, integer, items, text
from fairlead.wire.messages import Event, Rx

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
LIMIT = 32 * MIB
DROPPED = "fairlead.events.dropped"
KEYS = (schema.EVENTS, schema.EVENTS_BYTES, schema.EVENTS_TRIMMED, schema.EVENTS_AGENTS)
OVERHEAD = 120


async def stored(store: Pipeliner) -> list[tuple[str, str, str, str, bytes]]:
    """Position, agent, type, id and payload of each event, in order."""
    found = []
    for entry in items(await store.submit("XRANGE", schema.EVENTS, "-", "+")):
        position, fields = items(entry)
        flat = items(fields)
        payload = flat[9]
        assert isinstance(payload, bytes)
        found.append((text(position), text(flat[1]), text(flat[3]), text(flat[5]), payload))
    return found


async def check_accounts(store: Pipeliner) -> None:
    """What is noted of each agent, and of all together, is what the stream has."""
    entries, sizes = Counter[str](), Counter[str]()
    for _, agent, kind, event, payload in await stored(store):
        entries[agent] += 1
        sizes[agent] += len(agent) + len(kind) + len(event) + len(payload) + OVERHEAD
    noted = items(await store.submit("HGETALL", schema.EVENTS_AGENTS))
    accounts = {text(agent): text(of).split("|") for agent, of in zip(noted[::2], noted[1::2], strict=True)}
    assert {agent: (int(of[0]), int(of[1])) for agent, of in accounts.items()} == {
        agent: (count, sizes[agent]) for agent, count in entries.items()
    }
    assert int(text(await store.submit("GET", schema.EVENTS_BYTES)) if sizes else 0) == sizes.total()


async def add(store: Pipeliner, agent: str, event: str, size: int, limits: tuple[int, int, int, int]) -> Reply:
    """`limits` are entries and bytes of all, and of one agent."""
    entries, most, own_entries, own_bytes = limits
    args = (entries, most, agent, "t", event, 1, b"x" * size, own_entries, own_bytes)
    return await store.run(lua.ADD_EVENT, KEYS, args)


@pytest.mark.parametrize("limits", [(100_000, 800_000, 12_500, 100_000), (400, 100_000_000, 50, 12_500_000)])
async def test_a_flood_removes_the_oldest_of_its_own_agent(
    limits: tuple[int, int, int, int], own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    store = await redis_of(own_valkey)
    for n in range(20):
        await add(store, "quiet", f"q-{n}", 100, limits)
    removed = 0
    for n in range(500):
        removed += integer(await add(store, "flood", f"f-{n}", 1_000, limits))
    await check_accounts(store)
    found = await stored(store)
    assert [event for _, agent, _, event, _ in found if agent == "quiet"] == [f"q-{n}" for n in range(20)]
    flood = [(position, kind, event, payload) for position, agent, kind, event, payload in found if agent == "flood"]
    assert len(flood) <= limits[2] + 1
    assert sum(len(payload) for *_, payload in flood) <= limits[3]
    kept = [event for _, kind, event, _ in flood if kind == "t"]
    assert kept == [f"f-{n}" for n in range(500 - len(kept), 500)]
    # The newest event of the gateway says up to where events of this agent are missing: before the oldest one kept.
    markers = [(position, json.loads(payload)) for position, kind, _, payload in flood if kind == DROPPED]
    until = markers[-1][1]["until"]
    oldest = next(position for position, kind, *_ in flood if kind == "t")
    assert parsed(until) < parsed(oldest) < parsed(markers[-1][0])
    assert removed >= 500 - len(kept)
    assert 1 <= len(markers) < 50


def parsed(position: str) -> tuple[int, int]:
    ms, _, number = position.partition("-")
    return int(ms), int(number)


async def test_accounts_are_right_whatever_comes(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> None:
    store = await redis_of(own_valkey)
    chance = random.Random(16)
    limits = (200, 60_000, 60, 15_000)
    for n in range(1_500):
        agent = chance.choice(("a", "b", "b", "b", "c"))
        size = chance.choice((0, 50, 400, 400, 5_000, 20_000 if n % 50 == 0 else 10))
        await add(store, agent, f"e-{n}", size, limits)
        if n % 100 == 0:
            await check_accounts(store)
    await check_accounts(store)
    assert integer(await store.submit("XLEN", schema.EVENTS)) <= 201


async def test_events_of_others_outlive_a_flood_and_everybody_is_told(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    gateway = make_gateway(own_valkey.url, f"--redis-memory-limit={LIMIT}")
    api = api_of(gateway)
    quiet, flood = await dial(gateway), await dial(gateway)
    await quiet.greet()
    await flood.greet()

    async def knows_the_limit() -> bool:
        return await metric(gateway, "fairlead_redis_memory_limit_bytes") == LIMIT

    await until(knows_the_limit)
    await quiet.send(Event(id="important", type="disk.full", payload=b"{}"))
    await quiet.expect(Rx)
    count, dropped, told = 80, 0, 0  # 80 of 50 KB are more than all agents together may have, 5 % of 32 MiB
    for n in range(count):
        await flood.send(Event(id=f"f-{n}", type="noise", payload=b'"' + b"x" * 50_000 + b'"'))
    while told < count:
        receipt = await flood.expect(Rx)
        told, dropped = receipt.s, dropped + receipt.dropped
    lines = await events(api)
    assert [line["id"] for line in lines if line["agent"] == quiet.agent] == ["important"]
    kept = [line["id"] for line in lines if line["type"] == "noise"]
    assert kept == [f"f-{n}" for n in range(count - len(kept), count)]
    assert 1 <= len(kept) <= 4  # of 205 KiB
    notice = [line for line in lines if line["type"] == DROPPED][-1]
    assert notice["source"] == f"/v1/agents/{flood.agent}"
    assert set(notice["data"]) == {"count", "until"}
    assert dropped >= count - len(kept)
    # A reader that wants other types only is told as well.
    assert {line["type"] for line in await events(api, type="disk.*")} == {"disk.full", DROPPED}
    assert await metric(gateway, "fairlead_events_dropped_total") == dropped


async def events(api: GatewayApi, **query: str) -> list[dict[str, Any]]:
    answer = await api.http.get("/v1/events", params=query, headers={"accept": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text
    return [line for line in map(json.loads, answer.text.splitlines()) if line]
