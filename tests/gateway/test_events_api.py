"""`GET /v1/events`: agents' events for whoever may read them, in order, resumed by offset, with every gap told."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.client import AgentEvent, Client, LostEvents
from fairlead.errors import NodeBusy
from fairlead.fleet.events.event_log import EventLog
from fairlead.routing.events.event_feed import READERS
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Event, Rx

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import as_caller, create_token, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import WAIT

NDJSON = {"accept": "application/x-ndjson"}


async def emit(agent: ScriptedAgent, *types: str, payload: bytes = b'{"free":5}', at: int = 1767225600000) -> None:
    """Send events, and wait until the node has stored them."""
    for kind in types:
        await agent.send(Event(id=f"{agent.agent}-{kind}-{secrets.token_hex(4)}", type=kind, payload=payload, time=at))
    await agent.expect(Rx)


async def stored(api: GatewayApi, expected: int, **query: str) -> list[dict[str, Any]]:
    """The events that a request gets as soon as there are as many as expected."""
    async with asyncio.timeout(WAIT):
        while True:
            answer = await api.http.get("/v1/events", params=query, headers=NDJSON)
            assert answer.status_code == 200, answer.text
            found = [line for line in map(json.loads, answer.text.splitlines()) if line]
            if len(found) >= expected:
                return found
            await asyncio.sleep(0.05)


async def lines(api: GatewayApi, **query: str) -> AsyncGenerator[dict[str, Any]]:
    """What a follower gets, without the lines that keep the connection alive or only tell an offset."""
    async with (
        asyncio.timeout(WAIT),
        api.http.stream("GET", "/v1/events", params={"follow": "true", **query}, headers=NDJSON) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if (made := json.loads(line)) != {} and list(made) != ["offset"]:
                yield made


async def test_an_event_is_a_cloud_event(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    agent = await dial(gateway)
    await agent.greet()
    await emit(agent, "disk.full")
    await emit(agent, "raw", payload=b"\xff\x00", at=0)
    first, second = await stored(api, 2, agent=agent.agent)
    assert first["id"].startswith(f"{agent.agent}-disk.full-")
    assert {**first, "id": "", "offset": ""} == {
        "specversion": "1.0", "id": "", "source": f"/v1/agents/{agent.agent}", "type": "disk.full",
        "time": "2026-01-01T00:00:00.000Z", "datacontenttype": "application/json", "data": {"free": 5},
        "agent": agent.agent, "offset": "",
    }  # fmt: skip
    assert second["data_base64"] == "/wA="
    assert "time" not in second
    assert "datacontenttype" not in second
    assert [one["offset"] for one in await stored(api, 1, agent=agent.agent, after=first["offset"])] == [
        second["offset"]
    ]


async def test_filters_by_agent_type_and_selector(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    fleet = secrets.token_hex(4)
    web, db = await dial(gateway), await dial(gateway)
    await web.greet(facts={"fleet": fleet, "os": "linux"})
    await db.greet(facts={"fleet": fleet})
    await api.http.patch(f"/v1/agents/{db.agent}", json={"labels": {"tier": "data"}})
    await emit(web, "disk.full", "net.up")
    await emit(db, "disk.slow")
    mine = f"fact.fleet={fleet}"
    assert [one["type"] for one in await stored(api, 3, selector=mine)] == ["disk.full", "net.up", "disk.slow"]
    assert [one["agent"] for one in await stored(api, 1, selector=f"{mine},tier=data")] == [db.agent]
    assert [one["type"] for one in await stored(api, 2, selector=mine, type="disk.*")] == ["disk.full", "disk.slow"]
    assert [one["type"] for one in await stored(api, 1, agent=web.agent, type="net.up")] == ["net.up"]
    assert await stored(api, 0, agent=web.agent, type="net") == []


async def test_a_follower_gets_what_comes_at_any_node(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    first, second = (make_gateway(own_valkey.url, name=name) for name in ("node-1", "node-2"))
    agent = await dial(second)
    await agent.greet()
    await emit(agent, "before")
    await stored(api_of(first), 1)
    async with aclosing(lines(api_of(first), since="0")) as followed, asyncio.timeout(WAIT):
        first_event = asyncio.ensure_future(anext(followed))
        # The stream has begun once it is counted.
        while await metric(first, "fairlead_event_readers") != 1:
            await asyncio.sleep(0.05)
        await emit(agent, *(f"e{n}" for n in range(20)))
        found = [await first_event, *[await anext(followed) for _ in range(19)]]
        assert [one["type"] for one in found] == [f"e{n}" for n in range(20)]
        await emit(agent, "later")
        assert (await anext(followed))["type"] == "later"
    async with asyncio.timeout(WAIT):
        while await metric(first, "fairlead_event_readers") != 0:
            await asyncio.sleep(0.05)


async def test_a_browser_resumes_with_the_last_id(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    agent = await dial(gateway)
    await agent.greet()
    await emit(agent, "one", "two", payload=b'{\n"a": 1}')
    first, second = await stored(api, 2, agent=agent.agent)
    headers = {"accept": "text/event-stream", "last-event-id": first["offset"]}
    answer = await api.http.get("/v1/events", params={"agent": agent.agent}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    id, data, *rest = answer.text.split("\n")
    assert id == f"id: {second['offset']}"
    assert json.loads(data.removeprefix("data: ")) == second
    assert rest == ["", ""]


async def test_a_reader_goes_on_at_another_node_when_its_node_is_killed(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, dial: DialAgent
) -> None:
    doomed, other = (make_gateway(own_valkey.url, name=name) for name in ("node-1", "node-2"))
    agent = await dial(other)
    await agent.greet()
    await emit(agent, *(f"e{n}" for n in range(10)))
    found: list[str] = []
    async with (
        asyncio.timeout(2 * WAIT),
        Client(f"{doomed.api},{other.api}", DEVELOPMENT_PLATFORM_TOKEN) as client,
        aclosing(aiter(client.events(agent=agent.agent))) as events,
    ):
        while len(found) < 10:
            found.append(type_of(await anext(events)))
        doomed.signal(signal.SIGKILL)
        await emit(agent, *(f"e{n}" for n in range(10, 20)))
        while len(found) < 20:
            found.append(type_of(await anext(events)))
    assert found == [f"e{n}" for n in range(20)]


def type_of(event: AgentEvent | LostEvents) -> str:
    assert isinstance(event, AgentEvent)
    return event.type


async def test_events_that_were_removed_before_they_were_read_are_told(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    node = make_gateway(own_valkey.url)
    log = EventLog(await redis_of(own_valkey))
    await log.add("web-1", "t", "e-0", 1, b"{}", 1 << 20)
    (first,) = await stored(api_of(node), 1)
    for n in range(1, 200):
        await log.add(f"web-{n % 40}", "t", f"e-{n}", 1, b"x" * 1_000, 100_000)  # none has too much by itself
    resumed = await stored(api_of(node), 2, after=first["offset"])
    assert list(resumed[0]) == ["lost"]
    lost = resumed[0]["lost"]["offset"]
    assert [one["id"] for one in resumed[1:]] == [f"e-{n}" for n in range(201 - len(resumed), 200)]
    # Who resumes after the gap is not told of it again, and who begins anew has lost nothing.
    again = await stored(api_of(node), 1, after=lost)
    assert [one["id"] for one in again] == [one["id"] for one in resumed[1:]]
    assert await stored(api_of(node), 1) == again
    # The data are lost as a whole.
    await (await redis_of(own_valkey)).submit(
        "DEL", "fl1:events", "fl1:events_bytes:{fl1:events}", "fl1:events_trimmed:{fl1:events}"
    )
    await log.add("web-1", "t", "new", 1, b"{}", 100_000)
    told, new = await stored(api_of(node), 2, after=again[-1]["offset"])
    assert (list(told), new["id"]) == (["lost"], "new")


async def test_a_reader_whose_last_events_were_lost_gets_no_event_twice(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    """A failover may lose the last events: Redis then has never given the position of the reader."""
    node = make_gateway(own_valkey.url)
    log = EventLog(await redis_of(own_valkey))
    for n in range(5):
        await log.add("web-1", "t", f"e-{n}", 1, b"{}", 1 << 20)
    last = (await stored(api_of(node), 5))[-1]["offset"]
    ahead = f"{int(last.partition('-')[0]) + 60_000}-0"
    (told,) = await stored(api_of(node), 1, after=ahead)
    assert told == {"lost": {"offset": last}}
    assert await stored(api_of(node), 0, after=last) == []


@pytest.mark.parametrize("since", ["0", "3600"])
async def test_a_quiet_stream_tells_where_to_resume(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf, since: str
) -> None:
    """Otherwise what comes while its reader connects again would be lost in silence."""
    node = make_gateway(own_valkey.url)
    query = {"follow": "true", "since": since}
    async with (
        asyncio.timeout(WAIT),
        api_of(node).http.stream("GET", "/v1/events", params=query, headers=NDJSON) as answer,
    ):
        first = json.loads(await anext(answer.aiter_lines()))
    assert list(first) == ["offset"]
    await EventLog(await redis_of(own_valkey)).add("web-1", "meanwhile", "e-1", 1, b"{}", 1 << 20)
    assert [one["type"] for one in await stored(api_of(node), 1, after=first["offset"])] == ["meanwhile"]


async def test_a_reader_that_has_gone_leaves_its_place_although_events_keep_coming(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    node = make_gateway(own_valkey.url)
    log = EventLog(await redis_of(own_valkey))

    async def keep_coming() -> None:
        for n in itertools.count():
            await log.add("web-1", "t", f"e-{n}", 1, b"{}", 1 << 20)
            await asyncio.sleep(0.05)

    coming = asyncio.create_task(keep_coming())
    try:
        async with aclosing(lines(api_of(node), since="0")) as followed:
            assert (await anext(followed))["type"] == "t"
            assert await metric(node, "fairlead_event_readers") == 1
        async with asyncio.timeout(WAIT):
            while await metric(node, "fairlead_event_readers") != 0:
                await asyncio.sleep(0.05)
    finally:
        coming.cancel()


async def test_a_reader_sees_only_what_its_role_shows(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  dev-events:\n    - {verbs: [events], agents: env=dev}\n  dev-view:\n"
        "    - {verbs: [view], agents: env=dev}\nbindings:\n  - {tokens: [reader], roles: [dev-events]}\n"
        "  - {tokens: [viewer], roles: [dev-view]}\n",
    )
    node = make_gateway(own_valkey.url, "--roles", str(roles))
    api = api_of(node)
    dev, prod = await dial(node), await dial(node)
    for agent, env in ((dev, "dev"), (prod, "prod")):
        await agent.greet()
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": env}})
        await emit(agent, "secret")
    await stored(api, 2)
    viewer = as_caller(api_of, node, await create_token(api, "viewer"))
    assert "may not use verb events" in denied(await viewer.http.get("/v1/events"))
    reader = as_caller(api_of, node, await create_token(api, "reader"))
    assert [one["agent"] for one in await stored(reader, 1)] == [dev.agent]
    assert await stored(reader, 0, agent=prod.agent) == []
    # A stream that is open ends when its reader may read no more.
    async with aclosing(lines(reader)) as followed:
        assert (await anext(followed))["agent"] == dev.agent
        write_roles(
            roles,
            roles.read_text().replace(
                "{tokens: [reader], roles: [dev-events]}", "{tokens: [viewer], roles: [dev-events]}"
            ),
        )
        last = [line async for line in followed][-1]
    assert last["error"]["code"] == "permission_denied"


async def test_a_selector_of_events_tells_nothing_about_agents_that_the_caller_may_not_view(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    """Otherwise whoever reads the events of an agent could ask for its labels and facts, one question at a time."""
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  alarms:\n    - {verbs: [events], agents: '*'}\n  dev-view:\n    - {verbs: [view], agents: env=dev}\n"
        "bindings:\n  - {tokens: [reader], roles: [alarms, dev-view]}\n",
    )
    node = make_gateway(own_valkey.url, "--roles", str(roles))
    api = api_of(node)
    dev, prod = await dial(node), await dial(node)
    for agent, env in ((dev, "dev"), (prod, "prod")):
        await agent.greet(facts={"os": "linux"})
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": env}})
        await emit(agent, "up")
    reader = as_caller(api_of, node, await create_token(api, "reader"))
    assert [one["agent"] for one in await stored(reader, 2)] == [dev.agent, prod.agent]
    selectors = "label.env", "fact.os=linux", "env in (dev,prod)", "!retired", "env!=dev,os", "env=prod"
    for number, selector in enumerate(selectors):
        wanted = [dev.agent] * (selector not in ("env!=dev,os", "env=prod"))
        assert [one["agent"] for one in await stored(reader, 0, selector=selector)] == wanted, selector
        grouped = await stored(reader, 0, selector=selector, group=f"g{number}")
        assert [one["agent"] for one in grouped] == wanted, selector


async def test_a_stream_of_a_revoked_token_ends(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  r:\n    - {verbs: [events], agents: '*'}\nbindings:\n  - {tokens: [reader], roles: [r]}\n",
    )
    node = make_gateway(own_valkey.url, "--roles", str(roles))
    token = await create_token(api_of(node), "reader")
    async with aclosing(lines(as_caller(api_of, node, token))) as followed:
        reading = asyncio.ensure_future(anext(followed))
        async with asyncio.timeout(WAIT):
            while await metric(node, "fairlead_event_readers") != 1:
                await asyncio.sleep(0.05)
        await api_of(node).http.delete(f"/v1/tokens/{token.split('_')[1]}")
        assert (await reading)["error"]["code"] == "unauthorized"


async def test_readers_of_one_node_are_limited(make_gateway: MakeGateway, own_valkey: EmbeddedValkey) -> None:
    node = make_gateway(own_valkey.url)
    async with asyncio.timeout(2 * WAIT), Client(node.api, DEVELOPMENT_PLATFORM_TOKEN) as client:
        waiting = [asyncio.ensure_future(anext(aiter(client.events()))) for _ in range(READERS)]
        while await metric(node, "fairlead_event_readers") != READERS:
            await asyncio.sleep(0.05)
        with pytest.raises(NodeBusy, match=f"serves {READERS} readers of events"):
            async for _ in client.events(follow=False):
                pass
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"after": "5"}, "after"), ({"after": "5-0", "since": "5"}, "since"), ({"since": "-1"}, "since"),
        ({"follow": "yes"}, "follow"), ({"selector": "a b"}, "selector"), ({"type": "t" * 129}, "type"),
        ({"limit": "5"}, "limit"),
    ],
)  # fmt: skip
async def test_wrong_queries_are_explained(api: GatewayApi, query: dict[str, str], field: str) -> None:
    answer = await api.http.get("/v1/events", params=query)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_stream_goes_on_over_an_outage_of_redis(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, dial: DialAgent
) -> None:
    node = make_gateway(own_valkey.url)
    agent = await dial(node)
    await agent.greet()
    async with (
        asyncio.timeout(2 * WAIT),
        Client(node.api, DEVELOPMENT_PLATFORM_TOKEN) as client,
        aclosing(aiter(client.events())) as events,
    ):
        await emit(agent, "before")
        assert type_of(await anext(events)) == "before"
        os.kill(own_valkey.pid, signal.SIGSTOP)
        await agent.send(Event(id="during", type="during", payload=msgspec.json.encode(1)))
        await asyncio.sleep(2)  # an outage is longer than the store's timeout
        os.kill(own_valkey.pid, signal.SIGCONT)
        assert type_of(await anext(events)) == "during"
