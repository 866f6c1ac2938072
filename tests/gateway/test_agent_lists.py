"""Lists of agents: lists take turns slice by slice, and need few round trips if Redis is far away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.app.routes.list_scheduler import PLACES, ListScheduler
from fairlead.fleet import schema
from fairlead.fleet.directory import Directory
from fairlead.fleet.directory_replies import Claimed
from fairlead.shards import agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway


@pytest.fixture
async def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedValkey]:
    async with EmbeddedValkey(tmp_path_factory.mktemp("far") / "valkey", port=0) as valkey:
        yield valkey


async def _write_index(store: Pipeliner, names: list[str]) -> None:
    for name in names:
        await store.submit("ZADD", schema.index_key(agent_shard(name)), 0, name)


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1_000])
async def test_the_index_is_read_once_in_its_order(own_valkey: EmbeddedValkey, count: int) -> None:
    store = Pipeliner(own_valkey.url)
    store.start()
    assert await store.wait_available(10)
    try:
        names = sorted((f"agent-{i}" for i in range(150)), key=lambda name: (agent_shard(name), name))
        await _write_index(store, names)
        walked: list[str] = []
        async for page, shard, after in Directory(store).index_pages(0, "", count, ""):
            assert len(page) <= count
            walked += page
            # From each place on the rest follows, as a cursor has it.
            if len(walked) < 20:
                rest = [
                    name async for more, _, _ in Directory(store).index_pages(shard, after, 50, "") for name in more
                ]
                assert walked + rest == names
        assert walked == names
    finally:
        await store.aclose()


async def test_the_index_of_a_small_fleet_is_read_in_few_turns(own_valkey: EmbeddedValkey) -> None:
    store = Pipeliner(own_valkey.url)
    store.start()
    assert await store.wait_available(10)
    try:
        await _write_index(store, [f"agent-{i}" for i in range(20)])
        before = store.batches
        walked = [name async for page, _, _ in Directory(store).index_pages(0, "", 100, "") for name in page]
        assert len(walked) == 20
        assert store.batches - before <= 10, "of 64 shards, one turn each would be 64"
    finally:
        await store.aclose()


class DelayingProxy:
    """A TCP proxy that delays what goes to the server by `delay` seconds."""

    def __init__(self, port: int) -> None:
        self._far = port
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay = 0.0

    async def __aenter__(self) -> DelayingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far_in, far_out = await asyncio.open_connection("127.0.0.1", self._far)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(near_in, far_out, True), self._pump(far_in, near_out, False))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, slow: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                if slow and self.delay:
                    await asyncio.sleep(self.delay)
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()


@pytest.mark.timeout(120)
async def test_a_list_is_answered_in_time_by_a_node_far_from_redis(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi
) -> None:
    """Each round trip takes 0.4 s: the 64 shards one after the other would take half a minute."""
    async with DelayingProxy(own_valkey.port) as line:
        url = own_valkey.url.replace(f":{own_valkey.port}", f":{line.port}")
        node = await asyncio.to_thread(make_gateway, url)
        api = api_of(node)
        await api.http.get("/v1/agents")
        line.delay = 0.4
        async with asyncio.timeout(20):
            answer = await api.http.get("/v1/agents")
        assert answer.status_code in (200, 503), answer.text


@pytest.mark.timeout(60)
async def test_lists_take_turns_and_a_short_one_does_not_wait_for_long_ones() -> None:
    """The lists take turns slice by slice, one slice at a time, with a pause after each."""
    turns = ListScheduler()
    under_way, order = 0, []

    async def build(name: str, slices: int) -> None:
        nonlocal under_way
        async with turns.place():
            for _ in range(slices):
                async with turns.turn():
                    under_way += 1
                    assert under_way == 1
                    order.append(name)
                    await asyncio.sleep(0)
                    under_way -= 1

    async with asyncio.timeout(30):
        await asyncio.gather(build("long", 20), build("longer", 30), build("short", 2))
    assert order[:6] == ["long", "longer", "short"] * 2
    assert (order.count("long"), order.count("longer")) == (20, 30)
    assert turns.places_taken == 0


async def test_a_list_beyond_the_limit_waits_and_a_caller_that_gives_up_takes_no_place() -> None:
    turns = ListScheduler()
    async with contextlib.AsyncExitStack() as taken:
        for _ in range(PLACES):
            await taken.enter_async_context(turns.place())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), turns.place():
                pytest.fail("there was no place")
        assert turns.places_taken == PLACES
    assert turns.places_taken == 0
    async with asyncio.timeout(5), turns.place(), turns.turn():
        assert turns.places_taken == 1


@pytest.mark.timeout(120)
async def test_many_lists_at_once_contain_every_agent_once(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi
) -> None:
    """More lists than there are places, over more agents than one slice, one call and one page of the index hold."""
    node = await asyncio.to_thread(make_gateway, own_valkey.url)
    store = Pipeliner(own_valkey.url)
    store.start()
    try:
        assert await store.wait_available(10)
        directory = Directory(store)
        names = [f"agent-{n:04}" for n in range(300)]
        for n, name in enumerate(names):
            facts = b'{"os":"linux","place":"caf\\u00e9/1"}' if n % 3 else b'{"os":"windows"}'
            assert isinstance(await directory.claim(name, "gone#1", "boot", 1, "sid", facts, 1 << 52), Claimed)
    finally:
        await store.aclose()
    api = api_of(node)

    async def walk(**query: str | int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = await api.http.get("/v1/agents", params={**query, "cursor": cursor})
            if answer.status_code == 503:
                continue  # on a busy machine a list may wait longer for its place than it may
            assert answer.status_code == 200, answer.text
            found += answer.json()["agents"]
            if not (cursor := answer.json()["cursor"]):
                return found

    async with asyncio.timeout(90):
        walks = await asyncio.gather(*(walk(limit=130) for _ in range(PLACES + 8)), walk(selector="os=windows"))
    for walked in walks[:-1]:
        assert sorted(one["id"] for one in walked) == names
    assert sorted(one["id"] for one in walks[-1]) == names[::3]
    assert {one["facts"].get("place") for one in walks[0]} == {None, "café/1"}
