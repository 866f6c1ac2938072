"""Contents of a caller that wants to fill the memory of Redis, or that of a node."""

from __future__ import annotations

import hashlib

import pytest

from fairlead.errors import QuotaExceeded
from fairlead.fleet.contents.content_store import Contents, content_key, content_name
from fairlead.routing.contents.content_cache import ENTRY_BYTES, ContentCache
from fairlead.routing.contents.content_keeper import AHEAD_MS, LEAST_SIZE, UNUSED_MS, ContentKeeper
from fairlead.routing.contents.content_quota import FORGET_FROM, ContentQuota
from fairlead.routing.store_memory import StoreMemory
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.telemetry.metrics import Metrics

from support.fixtures import RedisOf
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.waiting import until


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_new_contents_of_one_tenant_are_bounded_and_those_of_others_are_not_affected(
    own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    store, clock = await redis_of(own_valkey), [1_000]
    keeper = ContentKeeper(Contents(store), StoreMemory(store, 0), lambda: clock[0], most_bytes=1_000)
    made = [bytes([n]) * 300 for n in range(4)]
    for data in made[:3]:
        assert await keeper.put("acme", digest_of(data), data)
    with pytest.raises(QuotaExceeded):
        await keeper.put("acme", digest_of(made[3]), made[3])
    assert not await keeper.put("acme", digest_of(made[0]), made[0]), "what is there is stored again, and counts once"
    assert await keeper.put("globex", digest_of(made[3]), made[3])
    clock[0] += UNUSED_MS
    assert await keeper.put("acme", digest_of(made[3]), made[3]), "after an hour there is room again"


async def test_contents_that_something_refers_to_are_bounded_too(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> None:
    """Otherwise a caller would store as much as one may in each hour, and have all of it kept for a week."""
    store, clock = await redis_of(own_valkey), [1_000]
    keeper = ContentKeeper(
        Contents(store), StoreMemory(store, 0), lambda: clock[0], most_bytes=1 << 20, most_kept=3 * LEAST_SIZE
    )
    digests = [digest_of(bytes([n])) for n in range(4)]
    for n, digest in enumerate(digests):
        for tenant in ("acme", "globex"):
            await keeper.put(tenant, digest, bytes([n]))
    for digest in digests[:3]:
        for _ in range(2):  # which counts once
            await keeper.refer("acme", digest, 60_000)
    with pytest.raises(QuotaExceeded):
        await keeper.refer("acme", digests[3], 60_000)
    assert integer(await store.submit("PTTL", content_key(content_name("acme", digests[3])))) <= UNUSED_MS
    await keeper.refer("globex", digests[3], 60_000)
    await keeper.refer("acme", digests[0], 120_000)
    clock[0] += UNUSED_MS + 60_001
    await keeper.refer("acme", digests[3], 60_000)  # two of the three have expired
    await keeper.refer("acme", digests[1], 60_000)
    with pytest.raises(QuotaExceeded):
        await keeper.refer("acme", digests[2], 60_000)


async def test_contents_that_are_stored_again_and_again_are_bounded_too(
    own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    """Otherwise a caller would store as much as one may in each hour, and keep what is there by storing it again."""
    store, clock = await redis_of(own_valkey), [1_000]
    keeper = ContentKeeper(
        Contents(store), StoreMemory(store, 0), lambda: clock[0], most_bytes=1 << 20, most_kept=3 * LEAST_SIZE
    )
    made = [bytes([n]) for n in range(4)]
    for data in made:
        assert await keeper.put("acme", digest_of(data), data)
        await store.submit("PEXPIRE", content_key(content_name("acme", digest_of(data))), 60_000)
    for data in made[:3]:
        for _ in range(2):
            assert not await keeper.put("acme", digest_of(data), data)
    with pytest.raises(QuotaExceeded):
        await keeper.put("acme", digest_of(made[3]), made[3])
    assert integer(await store.submit("PTTL", content_key(content_name("acme", digest_of(made[3]))))) <= 60_000
    clock[0] += UNUSED_MS + 1
    assert not await keeper.put("acme", digest_of(made[3]), made[3])


def test_what_has_expired_is_forgotten() -> None:
    """A tenant with a new script every minute would otherwise take megabytes of each node in weeks."""
    kept = ContentQuota()
    for now in range(5_000):
        assert kept.add(f"{now}", LEAST_SIZE, now + 60, now, 1 << 30)
        assert len(kept) <= FORGET_FROM
        assert kept.bytes == LEAST_SIZE * len(kept)
    for now in range(5_000, 5_300):  # long ones, of which none expires
        assert kept.add(f"{now}", LEAST_SIZE, now + 10_000, now, 1 << 30)
    assert not kept.add("one more", 1 << 30, 9_000, 5_400, 1 << 30)
    assert len(kept) >= 300


async def test_a_schedule_that_is_due_in_years_keeps_its_content_for_days(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """Who removes it at once would leave the content behind for years. Nodes renew those of schedules that stay."""
    store, api = await redis_of(own_valkey), api_of(make_gateway(own_valkey.url))
    keys = []
    for data in (b"removed", b"stays"):
        digest = digest_of(data)
        assert (await api.http.put(f"/v1/contents/{digest}", content=data)).status_code == 200
        run = {"method": "work", "selector": "*", "content": digest, "run_deadline": 60}
        answer = await api.http.post("/v1/schedules", json={"name": "leap", "cron": "0 0 29 2 *", "run": run})
        assert answer.status_code == 201, answer.text
        keys.append(content_key(content_name("", digest)))
        if data == b"removed":
            assert (await api.http.delete(answer.headers["location"])).status_code == 204
    most = AHEAD_MS + 60_000 + UNUSED_MS

    async def left(key: str) -> int:
        return integer(await store.submit("PTTL", key))

    assert [await left(key) <= most for key in keys] == [True, True]
    for key in keys:
        await store.submit("PEXPIRE", key, 600_000)
    make_gateway(own_valkey.url, name="node-2")

    async def renewed() -> bool:
        return await left(keys[1]) > AHEAD_MS

    await until(renewed)
    assert await left(keys[0]) <= 600_000


async def test_small_contents_do_not_fill_the_memory_of_a_node(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> None:
    contents = Contents(await redis_of(own_valkey))
    cache = ContentCache(contents, Metrics(), limit=10 * ENTRY_BYTES)
    for n in range(50):
        data = bytes([n])
        await contents.put(content_name("acme", digest_of(data)), data, 60_000)
        assert await cache.find(content_name("acme", digest_of(data))) == data
    assert len(cache._found) <= 10
