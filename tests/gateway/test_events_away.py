"""The primary of the events of a Cluster is away: agents of the other primaries run commands on, and their events are
stored when it is back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway.test_events_api import NDJSON
from gateway.test_primaries_lost_at_once import agent_on
from gateway.test_redis_failover import answered

from fairlead.fleet import schema
from fairlead.hub.pending_messages import PENDING_BYTES
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Event, Rx

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.cluster import Cluster
from support.waiting import until

pytestmark = pytest.mark.timeout(240)
CHUNK = 50_000
CHUNKS = 4
"""Of each command: less than its first credit, which the agent need not wait for."""
COMMANDS = 2 * PENDING_BYTES // (CHUNK * CHUNKS)
"""So many that all their output is twice of what one link may have pending."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "servers", replicas=False)
    try:
        await made.start()
        yield made
    finally:
        made.stop()


async def test_commands_go_on_while_the_events_of_their_agent_cannot_be_stored(
    cluster: Cluster, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    gone = await cluster.owner(schema.EVENTS)
    gateway = make_gateway(cluster.url)
    api = api_of(gateway)
    agent = await dial(gateway, await agent_on(cluster, next(one for one in cluster.servers if one is not gone)))
    await agent.greet()
    gone.signal(signal.SIGSTOP)
    try:
        await agent.send(Event(id="event-0", type="before", payload=b'"x"'))
        for number in range(COMMANDS):
            await ends(api, agent, number)
            await agent.send(Event(id=f"event-{number + 1}", type="between", payload=b'"x"'))
    finally:
        gone.signal(signal.SIGCONT)
    events = COMMANDS + 1
    while (await agent.expect(Rx)).s < events + COMMANDS * (CHUNKS + 2):
        pass
    await until(lambda: stored(api, {f"event-{number}" for number in range(events)}))


async def ends(api: GatewayApi, agent: ScriptedAgent, number: int) -> None:
    """A command with much output ends, and its agent is told meanwhile that nothing is stored."""
    body = {"agent": agent.agent, "method": "work", "deadline": 120}
    command = str((await answered(lambda: api.post(body))).json()["id"])
    while not isinstance(message := await agent.receive(), Cmd):
        assert not isinstance(message, Rx), "a receipt would cover the event, which is not stored"
    assert message.id == command
    await agent.send(Ack(id=command))
    for n in range(CHUNKS):
        await agent.send(Chunk(id=command, n=n, kind="stdout", payload=b"x" * CHUNK))
    await agent.send(End(id=command, total=CHUNKS, state="ok"))
    async with asyncio.timeout(60):
        assert (await api.end(command))["state"] == "ok", f"command {number}"


async def stored(api: GatewayApi, expected: set[str]) -> bool:
    answer = await answered(lambda: api.http.get("/v1/events", headers=NDJSON))
    assert answer.status_code == 200, answer.text
    return {line.get("id") for line in map(json.loads, answer.text.splitlines())} >= expected
