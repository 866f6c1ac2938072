"""A node that stops sends its callers elsewhere: every stream of results ends with the next offset."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx2
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Bye, Drain, End, Rx

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

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
        await agent.send_output(command, 0, "one")
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
    await agents[0].send_output(posted, 0, "posted")
    async with asyncio.timeout(20):
        await asyncio.gather(*(event.wait() for event in begun))
    stops.signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*tasks)
    for found in answers:
        assert found[-1] == {"more": 1}, found
    while not isinstance(await agents[1].receive(), Bye):
        pass
    assert await asyncio.to_thread(stops.wait, 20) == 0
    log = stops.log()
    assert "Traceback" not in log
    assert "Exception" not in log
    # What was promised holds: another node goes on from there.
    await agents[0].send_output(commands[0], 1, "two")
    await agents[0].send(End(id=commands[0], total=2))
    rest = await other.lines(commands[0], start=1)
    assert [line.get("text") for line in rest] == ["two", None]
    assert rest[-1]["end"]["state"] == "ok"


async def test_sigterm_announces_the_drain_then_closes_links_at_a_pace_and_exits_with_0(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The only node: its agents have nowhere to connect before it is back, so it closes their links at their slots."""
    gateway = make_gateway(own_valkey.url, "--drain-rate", "10")
    peers = [await dial(gateway) for _ in range(10)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    loop = asyncio.get_running_loop()
    gateway.signal(signal.SIGTERM)
    signalled = loop.time()

    async def closed_after(peer: ScriptedAgent) -> tuple[int, float]:
        assert (await peer.expect(Drain)).slot <= 1_000  # told when the budget has granted it, for a second ahead
        return await peer.close_code(), loop.time() - signalled

    closes = await asyncio.gather(*map(closed_after, peers))
    assert {code for code, _ in closes} == {CloseCode.RESTART}
    assert max(at for _, at in closes) > 0.6  # paced: not all at once
    assert await asyncio.to_thread(gateway.wait) == 0
    gateway.start()
    assert (await api_of(gateway).agent(peers[0].agent))["state"] == "away"


async def test_a_drain_hands_over_an_agent_with_its_running_commands(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    leaving = make_gateway(own_valkey.url, "--drain-timeout", "8", name="node-1")  # too short for its command
    other = make_gateway(own_valkey.url, name="node-2")
    api = api_of(other)
    peer = await dial(leaving)
    await peer.greet(conn=1)
    command = await api.start(peer.agent)
    await peer.command()
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "here ")
    await peer.expect(Rx)
    followed = asyncio.ensure_future(api.lines(command))
    leaving.signal(signal.SIGTERM)
    assert (await peer.expect(Drain)).why == "shutdown"
    assert await peer.close_code() == CloseCode.RESTART
    while (found := await api.agent(peer.agent))["state"] != "away":
        await asyncio.sleep(0.02)
    assert found["why"] == "it moves to another node"
    waiting = await api.start(peer.agent, payload={"second": True})  # posted between the two links: it waits
    again = await dial(other, peer.agent)
    assert (await again.greet(conn=2)).have == {command: 1}
    assert (await again.command()).id == waiting
    await again.send_output(command, 1, "there")
    await again.send(End(id=command, total=2))
    lines = await followed
    assert "".join(line.get("text", "") for line in lines) == "here there"
    assert lines[-1]["end"]["state"] == "ok"
    assert leaving.wait() == 0
