"""With `durability` replicated or fsync nothing is told before a replica, or the disk, has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.messages import Ack, Cmd, End, Rx

from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent
from support.valkey.replicas import Replicas
from support.waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


@pytest.fixture
async def gateway(redis: Replicas, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    made = GatewayProcess(tmp_path, redis.url, ("--durability", "replicated"))
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)


async def read(api: GatewayApi, command: str) -> dict[str, Any]:
    """The record, once the nodes have compared what they know."""
    async with asyncio.timeout(30):
        while (answer := await api.http.get(f"/v1/commands/{command}")).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def start(api: GatewayApi, agent: str) -> str:
    """Post a command, again while the machine is too busy for it to be confirmed in time."""
    async with asyncio.timeout(30):
        while (answer := await api.post({"agent": agent, "method": "work"})).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def unconfirmed(gateway: GatewayProcess, value: float) -> bool:
    return await metric(gateway, "fairlead_redis_unconfirmed") == value


async def test_what_no_replica_has_is_not_told_and_told_when_one_is_back(
    redis: Replicas, gateway: GatewayProcess, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    command = await start(api, peer.agent)
    while (await peer.expect(Cmd)).id != command:
        pass
    redis.hold()
    await peer.send(Ack(id=command), End(id=command, total=0, state="ok"))
    receipt = asyncio.create_task(peer.expect(Rx))
    await until(lambda: unconfirmed(gateway, 1))
    answer = await api.post({"agent": peer.agent, "method": "work"})
    assert (answer.status_code, answer.json()["code"]) == (503, "not_confirmed"), answer.text
    assert "no replica has confirmed it" in answer.json()["detail"]
    read = await api.http.get(f"/v1/commands/{command}")
    assert read.status_code == 503, "the end must not be told"
    assert not receipt.done()
    assert await metric(gateway, "fairlead_agents") == 1, "links stay"
    another = GatewayProcess(tmp_path, redis.url, ("--durability", "replicated"), "node-2")
    try:
        await asyncio.to_thread(another.start)  # a node joins all the same
    finally:
        await asyncio.to_thread(another.stop)
    redis.release()
    await until(lambda: unconfirmed(gateway, 0))
    assert (await receipt).s >= 1
    assert (await api.end(command))["state"] == "ok"


async def test_a_post_that_no_replica_has_is_neither_accepted_nor_refused(
    redis: Replicas, gateway: GatewayProcess, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Until the node knows that replicas are away, the outcome is not known; the id tells it later."""
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    before = await start(api, peer.agent)
    redis.hold()
    answer = await api.post({"agent": peer.agent, "method": "work"})
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown"), answer.text
    redis.release()
    command = answer.json()["id"]
    while (sent := (await peer.expect(Cmd)).id) != command:
        assert sent == before
    await peer.send(Ack(id=command), End(id=command, total=0, state="ok"))
    await until(lambda: unconfirmed(gateway, 0))
    assert (await api.end(command))["state"] == "ok"


@pytest.mark.parametrize("round", range(3))
async def test_a_killed_primary_loses_nothing_that_was_told(
    redis: Replicas, gateway: GatewayProcess, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path, round: int
) -> None:
    """The node is killed too, so that nobody can repeat what was told."""
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    told: dict[str, str] = {}

    async def post() -> None:
        while True:
            answer = await api.post({"agent": peer.agent, "method": "work"})
            if answer.status_code != 202:
                continue
            told[answer.json()["id"]] = "accepted"

    async def serve() -> None:
        sent: list[str] = []
        acknowledged = 0
        while True:
            message = await peer.receive()
            if isinstance(message, Cmd):
                await peer.send(Ack(id=message.id), End(id=message.id, total=0, state="ok"))
                sent += [message.id, message.id]
            elif isinstance(message, Rx):
                for command in sent[acknowledged : message.s]:
                    told[command] = "ended" if told.get(command) == "acknowledged" else "acknowledged"
                acknowledged = message.s

    tasks = [asyncio.create_task(work) for work in (post(), post(), post(), serve())]
    await until(lambda: len(told) > 20 + 30 * round)
    redis.primary.kill()
    gateway.signal(9)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await redis.promote()
    reader = GatewayProcess(tmp_path, redis.url, (), "node-2")
    try:
        await asyncio.to_thread(reader.start)
        states = {command: (await read(api_of(reader), command))["state"] for command in told}
    finally:
        await asyncio.to_thread(reader.stop)
    ended = [command for command, what in told.items() if what == "ended"]
    assert len(told) > 20
    assert [states[command] for command in ended] == ["ok"] * len(ended)
