"""A node that stops tells its callers to go on elsewhere: every stream of results ends with the next offset."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx2
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Bye, End, Rx

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent

SSE = {"accept": "text/event-stream"}


async def lines(
    http: httpx2.AsyncClient, request: tuple[str, str], more: dict[str, Any], begun: asyncio.Event
) -> list[Any]:
    """All objects of one stream, until the node ends it; `begun` is set when the first result arrives."""
    found: list[Any] = []
    async with http.stream(*request, **more) as answer:
        assert answer.status_code in (200, 202)
        async for raw in answer.aiter_lines():
            text = raw.removeprefix("data: ")
            if text.startswith("{") and text != "{}":
                found.append(json.loads(text))
            if any("offset" in line for line in found):
                begun.set()
    return found


@pytest.mark.timeout(120)
async def test_callers_of_a_stopping_node_are_told_where_to_continue(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Followers of commands on both nodes, in both formats, and of a post."""
    stops = make_gateway(own_valkey.url, "--drain-timeout", "4")  # its agent runs a command to the end
    stays = make_gateway(own_valkey.url, name="node-2")
    api, other = api_of(stops), api_of(stays)
    agents = [await dial(stays), await dial(stops)]
    commands = []
    for agent in agents:
        await agent.greet()
        command = await other.start(agent.agent)
        commands.append(command)
        await agent.command()
        await agent.send(Ack(id=command))
        await agent.say(command, 0, "one")
        await agent.expect(Rx)
    streams = [
        (("GET", f"/v1/commands/{command}/results?follow=true"), {"headers": headers})
        for command in commands
        for headers in ({"accept": "application/x-ndjson"}, SSE)
    ]
    body = {"agent": agents[0].agent, "method": "work"}
    streams.append((("POST", "/v1/commands"), {"headers": {"accept": "application/x-ndjson"}, "json": body}))
    begun = [asyncio.Event() for _ in streams]
    tasks = [
        asyncio.create_task(lines(api.http, request, more, event))
        for (request, more), event in zip(streams, begun, strict=True)
    ]
    posted = (await agents[0].command()).id
    await agents[0].send(Ack(id=posted))
    await agents[0].say(posted, 0, "posted")
    async with asyncio.timeout(20):
        await asyncio.gather(*(event.wait() for event in begun))
    stops.signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        told = await asyncio.gather(*tasks)
    for found in told:
        assert found[-1] == {"more": 1}, found
    while not isinstance(await agents[1].receive(), Bye):
        pass
    assert await asyncio.to_thread(stops.wait, 20) == 0
    log = stops.log()
    assert "Traceback" not in log
    assert "Exception" not in log
    # What was promised holds: another node goes on from there.
    await agents[0].say(commands[0], 1, "two")
    await agents[0].send(End(id=commands[0], total=2))
    rest = await other.lines(commands[0], start=1)
    assert [line.get("text") for line in rest] == ["two", None]
    assert rest[-1]["end"]["state"] == "ok"
