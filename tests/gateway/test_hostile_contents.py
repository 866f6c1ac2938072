"""Contents of a caller that wants to fill the memory of Redis, or that of a node."""

from __future__ import annotations

import hashlib

import pytest

from fairlead.errors import QuotaExceeded
from fairlead.fleet.contents.content_store import Contents, content_name
from fairlead.routing.contents.content_cache import ENTRY_BYTES, ContentCache
from fairlead.routing.contents.content_keeper import UNUSED_MS, ContentKeeper
from fairlead.routing.store_memory import StoreMemory
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.telemetry.metrics import Metrics

from support.fixtures import RedisOf


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


async def test_small_contents_do_not_fill_the_memory_of_a_node(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> None:
    contents = Contents(await redis_of(own_valkey))
    cache = ContentCache(contents, Metrics(), limit=10 * ENTRY_BYTES)
    for n in range(50):
        data = bytes([n])
        await contents.put(content_name("acme", digest_of(data)), data, 60_000)
        assert await cache.find(content_name("acme", digest_of(data))) == data
    assert len(cache._found) <= 10
