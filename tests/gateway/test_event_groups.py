"""Groups of readers of events: at least once, shared, resumed, bounded, and with every gap told."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fairlead.client import AgentEvent, Client
from fairlead.errors import Unavailable
from fairlead.fleet.events.event_groups import GROUPS_LIMIT
from fairlead.fleet.events.event_log import EventLog
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.roles import as_caller, create_token, denied, write_roles
from support.plain_http import plain_client
from support.waiting import WAIT, until

NDJSON = {"accept": "application/x-ndjson"}
PLENTY = 1 << 26


async def add(log: EventLog, *ids: str, agent: str = "web-1", kind: str = "t", payload: bytes = b"{}") -> None:
    for one in ids:
        await log.add(agent, kind, one, 1, payload, PLENTY)


async def taken(api: GatewayApi, group: str, **query: str | int) -> list[dict[str, Any]]:
    """What one reader of the group gets at once."""
    answer = await api.http.get("/v1/events", params={"group": group, **query}, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    return [line for line in map(json.loads, answer.text.splitlines()) if line]


async def follow(api: GatewayApi, group: str, **query: str | int) -> AsyncGenerator[dict[str, Any]]:
    params = {"group": group, "follow": "true", **query}
    async with api.http.stream("GET", "/v1/events", params=params, headers=NDJSON) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if made := json.loads(line):
                yield made


async def acknowledge(api: GatewayApi, group: str, *lines: dict[str, Any]) -> int:
    body = {"offsets": [line["offset"] for line in lines]}
    answer = await api.http.post(f"/v1/event-groups/{group}/acknowledgements", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["acknowledged"])


async def group_of(api: GatewayApi, name: str) -> dict[str, Any]:
    found = (await api.http.get("/v1/event-groups")).json()["groups"]
    return dict(next(one for one in found if one["name"] == name))


async def test_readers_of_a_group_share_its_events_on_any_node(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    apis = [api_of(make_gateway(own_valkey.url, name=name)) for name in ("node-1", "node-2")]
    log = EventLog(await redis_of(own_valkey))
    expected = [f"e-{n}" for n in range(24)]
    found: list[list[str]] = [[], [], []]
    begun: set[int] = set()

    async def read(number: int) -> None:
        api = apis[number % 2]
        async with aclosing(follow(api, "shared", window=2)) as lines:
            async for line in lines:
                assert line["attempt"] == 1
                begun.add(number)
                await until(lambda: len(begun) == 3)  # nobody has more than its window before all have something
                assert await acknowledge(api, "shared", line) == 1
                found[number].append(line["id"])

    readers = [asyncio.create_task(read(number)) for number in range(3)]
    try:
        for one in expected:
            await add(log, one)
        await until(lambda: sum(map(len, found)) >= len(expected) or any(map(asyncio.Task.done, readers)), 120)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(itertools.chain(*found)) == sorted(expected), "each event went to exactly one of them"
    assert all(found), "each of them got some"
    assert all(one == sorted(one, key=expected.index) for one in found), "and each got its own in order"

    async def settled() -> bool:
        one = await group_of(apis[0], "shared")
        return (one["pending"], one["lag"]) == (0, 0)

    await until(settled)


async def test_what_a_lost_reader_had_goes_to_another(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    doomed, other = (make_gateway(own_valkey.url, name=name) for name in ("node-1", "node-2"))
    await add(EventLog(await redis_of(own_valkey)), "e-1", "e-2", "e-3")
    async with asyncio.timeout(2 * WAIT), aclosing(follow(api_of(doomed), "g", window=2, ack_within=5)) as lines:
        first, second = [await anext(lines) for _ in range(2)]
        assert await acknowledge(api_of(other), "g", first) == 1
        third = await anext(lines)  # there is room again
        doomed.signal(signal.SIGKILL)
        assert await taken(api_of(other), "g") == [], "not before its time is over"
        async with aclosing(follow(api_of(other), "g", ack_within=60)) as others:
            again = [await anext(others) for _ in range(2)]
    assert again == [{**second, "attempt": 2}, {**third, "attempt": 2}]
    assert await acknowledge(api_of(other), "g", first, *again) == 2, "the first was acknowledged before"
    assert (await group_of(api_of(other), "g"))["pending"] == 0


async def test_a_group_goes_on_where_it_was_after_all_nodes_have_restarted(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    log, before = EventLog(await redis_of(own_valkey)), make_gateway(own_valkey.url)
    await add(log, *(f"e-{n}" for n in range(10)))
    lines = await taken(api_of(before), "g", window=4, ack_within=1)
    assert [line["id"] for line in lines] == ["e-0", "e-1", "e-2", "e-3"]
    await acknowledge(api_of(before), "g", *lines[:3])
    before.signal(signal.SIGKILL)
    before.wait()
    api = api_of(make_gateway(own_valkey.url, name="another"))
    found: dict[str, int] = {}
    async with asyncio.timeout(WAIT), aclosing(follow(api, "g")) as rest:
        while len(found) < 7:
            line = await anext(rest)
            found[line["id"]] = line["attempt"]
            await acknowledge(api, "g", line)
    assert found == {"e-3": 2, **{f"e-{n}": 1 for n in range(4, 10)}}
    assert await taken(api, "g") == []


async def test_a_group_is_told_what_was_removed_before_it_was_read_or_acknowledged(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    api, log = api_of(make_gateway(own_valkey.url)), EventLog(await redis_of(own_valkey))
    await add(log, "held", "read", "unread")
    held, read = await taken(api, "g", window=2, ack_within=1)
    await acknowledge(api, "g", read)
    for n in range(200):
        await log.add(f"web-{n % 40}", "t", f"new-{n}", 1, b"x" * 1_000, 100_000)
    lost: list[str] = []
    kept: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT), aclosing(follow(api, "g", window=1_000)) as lines:
        while not kept or kept[-1]["id"] != "new-199" or len(lost) < 2:
            line = await anext(lines)
            if "lost" in line:
                lost.append(line["lost"]["offset"])
            else:
                kept.append(line)
    assert held["offset"] in lost, "what a reader had and did not acknowledge"
    (gap,) = [one for one in lost if one != held["offset"]]
    assert [one["id"] for one in kept] == [f"new-{n}" for n in range(200 - len(kept), 200)]
    status = await group_of(api, "g")
    assert status["lost"] == gap
    assert status["lost_at"] is not None
    # An agent that is deleted takes its events with it, and that is no gap.
    await acknowledge(api, "g", *kept)
    await add(log, "gone", agent="web-2")
    gone: list[dict[str, Any]] = []

    async def given() -> bool:
        """The follower that has just left may have got it, and gives it back."""
        gone.extend(await taken(api, "g", ack_within=1))
        return bool(gone)

    await until(given, 30)
    assert [one["id"] for one in gone] == ["gone"]
    await log.remove("web-2")

    async def forgotten() -> bool:
        assert await taken(api, "g") == []
        return bool((await group_of(api, "g"))["pending"] == 0)

    await until(forgotten)


async def test_redis_loses_everything_and_the_group_begins_anew(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    node, store = make_gateway(own_valkey.url), await redis_of(own_valkey)
    log = EventLog(store)
    await add(log, "before")
    async with (
        asyncio.timeout(2 * WAIT),
        Client(node.api, DEVELOPMENT_PLATFORM_TOKEN) as client,
        aclosing(aiter(client.events(group="g"))) as events,
    ):
        first = await anext(events)
        assert isinstance(first, AgentEvent)
        assert (first.id, first.attempt) == ("before", 1)
        assert await client.event_groups.acknowledge("g", [first.offset]) == 1
        await store.submit("FLUSHALL")
        await add(log, "after")
        second = await anext(events)
        assert isinstance(second, AgentEvent)
        assert second.id == "after"


async def test_a_group_goes_on_over_an_outage_of_redis(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    node, log = make_gateway(own_valkey.url), EventLog(await redis_of(own_valkey))
    await add(log, "before")
    async with (
        asyncio.timeout(2 * WAIT),
        Client(node.api, DEVELOPMENT_PLATFORM_TOKEN) as client,
        aclosing(aiter(client.events(group="g"))) as events,
    ):
        first = await anext(events)
        assert isinstance(first, AgentEvent)
        os.kill(own_valkey.pid, signal.SIGSTOP)
        await asyncio.sleep(2)  # an outage is longer than the store's timeout
        os.kill(own_valkey.pid, signal.SIGCONT)

        async def acknowledged() -> bool:
            try:
                return await client.event_groups.acknowledge("g", [first.offset]) == 1
            except Unavailable:
                return False

        await until(acknowledged)
        await add(log, "after")
        second = await anext(events)
        assert isinstance(second, AgentEvent)
        assert (second.id, second.attempt) == ("after", 1)


async def test_a_window_bounds_a_reader_and_the_group_is_bounded_too(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    node = make_gateway(own_valkey.url)
    api, log = api_of(node), EventLog(await redis_of(own_valkey))
    await add(log, *(f"e-{n}" for n in range(1_200)))
    assert len(await taken(api, "g", window=1)) == 1
    assert len(await taken(api, "g")) == 100
    for _ in range(12):
        await taken(api, "g", window=1_000)
    status = await group_of(api, "g")
    assert (status["pending"], status["lag"]) == (1_000, 200)

    async def shown() -> bool:
        async with plain_client() as http:
            text = (await http.get(f"{node.admin}/metrics")).text
        return all(
            line in text
            for line in ('fairlead_event_group_lag{group="g"} 200.0', 'fairlead_event_group_pending{group="g"} 1000.0')
        )

    await until(shown)
    for n in range(GROUPS_LIMIT - 1):
        assert (await api.http.get("/v1/events", params={"group": f"g-{n}", "since": 0})).status_code == 200
    more = await api.http.get("/v1/events", params={"group": "one-more"})
    assert (more.status_code, "as many groups" in more.text) == (503, True)
    assert (await api.http.delete("/v1/event-groups/g")).status_code == 204
    assert (await api.http.delete("/v1/event-groups/g")).status_code == 404
    assert (await api.http.get("/v1/events", params={"group": "one-more"})).status_code == 200
    keys = await (await redis_of(own_valkey)).submit("KEYS", "fl1:event_pending*")
    assert keys == [b"fl1:event_pending:{fl1:events}:one-more"], "what was removed leaves nothing behind"


async def test_a_group_that_nobody_uses_is_removed(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    api, store = api_of(make_gateway(own_valkey.url)), await redis_of(own_valkey)
    await add(EventLog(store), "e-1")
    await taken(api, "old")
    for key in ("fl1:event_group:{fl1:events}:old", "fl1:event_pending:{fl1:events}:old"):
        left = await store.submit("PTTL", key)
        assert isinstance(left, int)
        assert 6 * 86_400_000 < left <= 7 * 86_400_000
        await store.submit("PEXPIRE", key, 1)
    await store.submit("ZADD", "fl1:event_groups:{fl1:events}", 1, "old")

    async def gone() -> bool:
        return bool((await api.http.get("/v1/event-groups")).json() == {"groups": []})

    await until(gone)
    await taken(api, "new")
    assert await store.submit("ZRANGE", "fl1:event_groups:{fl1:events}", 0, -1) == [b"new"]


async def test_a_group_is_that_of_its_caller_and_shows_only_what_its_role_shows(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, tmp_path: Path
) -> None:
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  web:\n    - {verbs: [events], ids: ['web-*']}\n  all:\n    - {verbs: [events], agents: '*'}\n"
        "bindings:\n  - {tokens: [web], roles: [web]}\n  - {tokens: [all], roles: [all, web]}\n",
    )
    node = make_gateway(own_valkey.url, "--roles", str(roles))
    log, admin = EventLog(await redis_of(own_valkey)), api_of(node)
    web, everyone, limited = [
        as_caller(api_of, node, await create_token(admin, name, **more))
        for name, more in (("web", {}), ("all", {}), ("all", {"roles": ["web"]}))
    ]
    await add(log, "e-1", "e-2")
    await add(log, "secret", agent="db-1")
    await add(log, "e-3")
    assert [line["id"] for line in await taken(web, "mine")] == ["e-1", "e-2", "e-3"]
    assert [line["id"] for line in await taken(everyone, "theirs", type="t")] == ["e-1", "e-2", "secret", "e-3"]
    line = {"offset": "1-0"}
    for stranger, name in ((everyone, "mine"), (web, "theirs"), (limited, "theirs")):
        assert "another caller has made" in denied(await stranger.http.get("/v1/events", params={"group": name}))
        path = f"/v1/event-groups/{name}"
        body = {"offsets": [line["offset"]]}
        assert (await stranger.http.post(f"{path}/acknowledgements", json=body)).status_code == 404
        assert (await stranger.http.delete(path)).status_code == 404
    names = [[one["name"] for one in (await api.http.get("/v1/event-groups")).json()["groups"]]
             for api in (web, everyone, limited, admin)]  # fmt: skip
    assert names == [["mine"], ["theirs"], [], ["mine", "theirs"]]
    other = await everyone.http.get("/v1/events", params={"group": "theirs", "type": "other"})
    assert (other.status_code, other.json()["field"]) == (422, "group")
    assert (await admin.http.delete("/v1/event-groups/theirs")).status_code == 204


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"group": ""}, "group"), ({"group": "a/b"}, "group"), ({"group": "g" * 65}, "group"),
        ({"group": "g", "window": "0"}, "window"), ({"group": "g", "window": "1001"}, "window"),
        ({"group": "g", "ack_within": "0"}, "ack_within"), ({"window": "5"}, "window"),
        ({"ack_within": "5"}, "ack_within"),
    ],
)  # fmt: skip
async def test_wrong_queries_are_explained(api: GatewayApi, query: dict[str, str], field: str) -> None:
    answer = await api.http.get("/v1/events", params=query)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
