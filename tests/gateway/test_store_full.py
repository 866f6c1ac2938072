"""Redis is full: new commands are refused as `store_full`, everything that was accepted goes on, and links stay."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet import lua
from fairlead.fleet.events.event_log import EventLog
from fairlead.routing.store_memory import FULL_SHARE, LOW_SHARE, MARGIN, MemoryLevel, next_level
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, text
from fairlead.store.script import Script
from fairlead.wire.messages import Ack, Chunk, End, Event

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

MIB = 1024 * 1024
LIMIT = 32 * MIB


async def used(store: Pipeliner) -> int:
    info = text(await store.submit("INFO", "memory"))
    return int(info.partition("used_memory:")[2].split()[0])


async def fill(store: Pipeliner, share: float) -> None:
    """Use this share of LIMIT with keys that are not Fairlead's."""
    step = 0
    while (missing := int(LIMIT * share) - await used(store)) > 20_000:
        step += 1
        await store.submit("SET", f"filler:{step}", secrets.token_bytes(min(missing, 1_000_000)))


async def empty(store: Pipeliner) -> None:
    for key in await store.submit("KEYS", "filler:*"):  # type: ignore[union-attr]  # an array
        await store.submit("DEL", key)  # type: ignore[arg-type]  # bytes


@pytest.mark.parametrize("share", [0.93, 1.2])
async def test_a_full_redis_refuses_new_commands_and_nothing_else(
    share: float, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi,
    redis_of: RedisOf,
) -> None:  # fmt: skip
    gateways = [make_gateway(own_valkey.url, "--bus-grace", "8", name=name) for name in ("node-1", "node-2")]
    api = api_of(gateways[0])
    store = await redis_of(own_valkey)
    peer, other = await dial(gateways[1]), await dial(gateways[1])
    await peer.greet()
    await other.greet()
    ending, cancelled = await api.start(peer.agent, deadline=300), await api.start(other.agent, deadline=300)
    assert (await peer.command()).id == ending
    assert (await other.command()).id == cancelled
    await fill(store, share)
    await store.submit("CONFIG", "SET", "maxmemory", LIMIT)
    for gateway in gateways:
        while not await refuses(gateway):
            if share < 1:  # buffers that were counted may be gone
                await fill(store, share)
            await asyncio.sleep(0.1)
    answer = await api.post({"agent": peer.agent, "method": "m"})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "store_full", "30")
    assert "Redis uses" in answer.json()["detail"]
    # What was accepted goes on: results, an end, a cancellation through another node, events, labels.
    await peer.send(Ack(id=ending), *(Chunk(id=ending, n=n, kind="stdout", payload=b"x" * 65_536) for n in range(3)))
    await peer.send(Event(id="e-1", type="t", qos=1, time=1, payload=b"{}"), End(id=ending, total=3))
    assert (await api.end(ending))["state"] == "ok"
    assert len(await api.output(ending)) == 3 * 65_536
    await other.send(Ack(id=cancelled))
    assert (await api.http.delete(f"{gateways[0].api}/v1/commands/{cancelled}")).status_code < 300
    await other.send(End(id=cancelled, total=0, state="cancelled"))
    assert (await api.end(cancelled))["state"] == "cancelled"
    # A new agent is claimed, one that leaves is released, and heartbeats are answered.
    new = await dial(gateways[0])
    await new.greet()
    await other.socket.close()

    async def left() -> bool:
        return bool((await api.agent(other.agent))["state"] != "online")

    await until(left)
    for gateway in gateways:
        await until(partial(beats_again, gateway, await last_heartbeat(gateway)))
        assert (await api.http.get(f"{gateway.admin}/readyz")).status_code == 200
    assert peer.socket.state is new.socket.state is websockets.State.OPEN
    assert await metric(gateways[0], "fairlead_store_full_total") >= 1
    await empty(store)

    async def accepted() -> bool:
        answer = await api.post({"agent": new.agent, "method": "m"})
        return answer.status_code == 202

    await until(accepted)
    await new.command()


async def refuses(gateway: GatewayProcess) -> bool:
    share = await metric(gateway, "fairlead_redis_memory_bytes") / LIMIT
    return share >= FULL_SHARE and await metric(gateway, "fairlead_redis_memory_limit_bytes") == LIMIT


async def last_heartbeat(gateway: GatewayProcess) -> float:
    """When the last one was answered, by this machine's clock."""
    return time.monotonic() - await metric(gateway, "fairlead_heartbeat_age_seconds")


async def beats_again(gateway: GatewayProcess, before: float) -> bool:
    """Whether a heartbeat was answered since the one at `before`; there are seconds between two."""
    return await last_heartbeat(gateway) > before + 1


async def test_low_memory_refuses_large_payloads_only(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """The limit is the setting's, because the server has none."""
    gateway = make_gateway(own_valkey.url, "--redis-memory-limit", str(LIMIT))
    api = api_of(gateway)
    store = await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet()
    large = {"agent": peer.agent, "method": "m", "payload": {"x": "y" * 10_000}}
    assert (await api.post(large)).status_code == 202
    await fill(store, 0.85)

    async def refused() -> bool:
        answer = await api.post(large)
        return answer.status_code == 503 and answer.json()["code"] == "store_full"

    await until(refused)
    assert (await api.post({"agent": peer.agent, "method": "m"})).status_code == 202


async def test_the_oldest_events_make_room(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> None:
    store = await redis_of(own_valkey)
    events = EventLog(store)
    for n in range(400):
        await events.add(f"a{n % 40}", "t", f"e-{n}", n, b"x" * 1_000, 100_000)
    kept = integer(await store.submit("XLEN", "fl1:events"))
    assert 80 <= kept <= 90  # of some 1,130 bytes each
    assert integer(await store.submit("GET", "fl1:events_bytes:{fl1:events}")) <= 100_000
    for n in range(6):  # a hundred entries are removed at a time
        await events.add(f"b{n}", "t", f"f-{n}", 1, b"", 10_000)
    assert integer(await store.submit("GET", "fl1:events_bytes:{fl1:events}")) <= 10_000
    left = [*(f"a{n}" for n in range(40)), *(f"b{n}" for n in range(6))]
    removed = sum(await asyncio.gather(*(events.remove(agent) for agent in left)))
    assert removed > 0
    assert integer(await store.submit("XLEN", "fl1:events")) == 0
    assert integer(await store.submit("GET", "fl1:events_bytes:{fl1:events}")) == 0


def test_only_new_commands_and_the_building_of_columns_wait_for_room() -> None:
    scripts = [found for found in vars(lua).values() if isinstance(found, Script)]
    refused = {script.name for script in scripts if "allow-oom" not in script.source.partition("\n")[0]}
    assert len(scripts) > 30
    assert refused == {"accept_command", "accept_commands", "create_columns", "index_agent"}


@given(st.lists(st.floats(0, 1.5)))
def test_the_level_follows_the_share_and_does_not_alternate(shares: list[float]) -> None:
    level = MemoryLevel.SUFFICIENT
    for share in shares:
        level = next_level(level, share)
        assert next_level(level, share) is level
        if share >= FULL_SHARE:
            assert level is MemoryLevel.FULL
        elif share >= LOW_SHARE:
            assert level >= MemoryLevel.LOW
        if share < LOW_SHARE - MARGIN:
            assert level is MemoryLevel.SUFFICIENT
        elif share < FULL_SHARE - MARGIN:
            assert level <= MemoryLevel.LOW
