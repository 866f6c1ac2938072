"""Redis loses the acceptance of a command and its end: the end that was told stays, whichever node says its part first.

The primary is killed while its replica lacks both; the nodes reach both behind one address.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway.test_redis_failover import (
    AGENT,
    QUEUED,
    answered,
    end,
    fail_over,
    known_agent,
    read,
    start,
    state_in_redis,
)

from fairlead.fleet.schema import aside_key
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.line import Line
from support.valkey.replicas import Replicas
from support.waiting import until

pytestmark = pytest.mark.timeout(120)
KEY = {"idempotency-key": "the same"}


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


@pytest.fixture
async def nodes(redis: Replicas, tmp_path: Path) -> AsyncIterator[list[GatewayProcess]]:
    """The agent is at the first one, which stores what it sends."""
    made = [GatewayProcess(tmp_path, redis.url, (), name) for name in ("node-1", "node-2")]
    try:
        await asyncio.gather(*(asyncio.to_thread(gateway.start) for gateway in made))
        yield made
    finally:
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in made))


async def ended_behind_the_replica(
    redis: Replicas, api: GatewayApi, dial: DialAgent, holder: GatewayProcess
) -> tuple[str, dict[str, Any], ScriptedAgent]:
    """A command that was told as ended, of which the replica knows nothing."""
    peer = await dial(holder, AGENT)
    await peer.greet()
    await redis.in_step()
    redis.hold()
    command = str((await api.post({"agent": AGENT, "method": "work"}, **KEY)).json()["id"])
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "all of ")
    await peer.send_output(command, 1, "it")
    await peer.send(End(id=command, total=2, state="ok", payload=b"7"))
    told = await end(api, command)
    assert told["state"] == "ok"
    return command, told, peer


async def check_told(api: GatewayApi, command: str, told: dict[str, Any]) -> None:
    found = await read(api, command)
    assert (found["state"], found["truncated"]) == ("ok", False)
    assert await api.output(command) == "all of it"
    assert await end(api, command) == told


@pytest.mark.parametrize("acceptor", [0, 1], ids=["accepted-by-the-agents-node", "accepted-by-another-node"])
async def test_an_end_that_was_told_stays_although_redis_has_lost_the_acceptance(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent, acceptor: int
) -> None:
    api = api_of(nodes[acceptor])
    command, told, peer = await ended_behind_the_replica(redis, api, dial, nodes[0])
    await fail_over(redis)
    for gateway in nodes:
        await check_told(api_of(gateway), command, told)
    repeated = await answered(lambda: api.post({"agent": AGENT, "method": "work"}, **KEY))
    assert (repeated.json()["id"], repeated.json()["state"]) == (command, "ok")
    marker = await start(api)
    assert (await peer.expect(Cmd)).id == marker, "the first command must not be sent again"
    assert not await redis.primary.call("EXISTS", aside_key(command))


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "taken-for-dead"])
async def test_an_end_stays_when_its_node_says_it_after_the_acceptor_has_said_that_it_is_lost(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent, late: bool
) -> None:
    """If the node with the end is silent for so long that it is taken for dead, the command is lost meanwhile. Before
    that, nobody is told anything: test_redis_failover has what waits."""
    api = api_of(nodes[1])
    command, told, _ = await ended_behind_the_replica(redis, api, dial, nodes[0])
    nodes[0].signal(signal.SIGSTOP)
    try:
        await fail_over(redis)
        await until(lambda: _is_in_redis(redis, command, "failed"))
        if late:
            assert (await end(api, command))["error"]["code"] == "record_lost"
    finally:
        nodes[0].signal(signal.SIGCONT)
    await until(lambda: _is_in_redis(redis, command, "ok"))
    await check_told(api, command, told)


@pytest.mark.parametrize("late", [False, True], ids=["in-time", "taken-for-dead"])
async def test_an_end_stays_when_its_node_says_it_before_the_acceptor_says_its_part(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent, late: bool
) -> None:
    """If the acceptor is silent for so long that it is taken for dead, the record is gone meanwhile, and returns as it
    was told."""
    api = api_of(nodes[1])
    command, told, _ = await ended_behind_the_replica(redis, api, dial, nodes[0])
    nodes[1].signal(signal.SIGSTOP)
    try:
        await fail_over(redis)
        await until(lambda: _is_set_aside(redis, command))
        if late:
            other = api_of(nodes[0])
            answer = await answered(lambda: other.http.get(f"/v1/commands/{command}"))
            assert answer.json()["code"] == "command_unknown", answer.text
    finally:
        nodes[1].signal(signal.SIGCONT)
    await until(lambda: _is_in_redis(redis, command, "ok"))
    await check_told(api, command, told)
    await until(lambda: _is_forgotten(redis, command))


async def test_results_that_another_node_has_stored_than_the_end_are_told_as_missing(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """The agent moves in between, so that no node alone knows all of the command."""
    peer = await dial(nodes[0], AGENT)
    await peer.greet()
    await redis.in_step()
    redis.hold()
    api = api_of(nodes[1])
    command = await start(api)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "all of it")
    await until(lambda: _has_output(api, command))
    await peer.socket.close()
    again = await dial(nodes[1], AGENT)
    assert (await again.greet(conn=2)).have == {command: 1}
    await again.send(End(id=command, total=1, state="ok"))
    assert (await end(api, command))["state"] == "ok"
    await fail_over(redis)
    found = await read(api, command)
    assert (found["state"], found["truncated"]) == ("ok", True)


async def test_whoever_follows_the_command_is_told_its_end(
    redis: Replicas, nodes: list[GatewayProcess], tmp_path: Path, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """A node accepts a command, and hears nothing of its end, which another node tells, before Redis is lost."""
    async with Line(redis.primary.port) as line:
        acceptor = GatewayProcess(tmp_path, redis.url_at(line.port), (), "node-3")
        await asyncio.to_thread(acceptor.start)
        try:
            peer = await dial(nodes[0], AGENT)
            await peer.greet()
            await redis.in_step()
            redis.hold()
            api, other = api_of(acceptor), api_of(nodes[0])
            command = await start(api)
            assert (await peer.expect(Cmd)).id == command
            await peer.send(Ack(id=command))
            await peer.send_output(command, 0, "all of it")
            async with api.http.stream("GET", f"/v1/commands/{command}/results?from=0&follow=true") as answer:
                lines = answer.aiter_lines()
                await anext(found async for found in lines if "all of it" in found)
                line.hold()
                await peer.send(End(id=command, total=1, state="ok"))
                assert (await end(other, command))["state"] == "ok"
                await fail_over(redis)
                line.target = redis.primary.port
                line.cut()
                line.release()
                told = [json.loads(found) async for found in lines if found]
            assert told[-1]["end"]["state"] == "ok", told
        finally:
            await asyncio.to_thread(acceptor.stop)


async def test_targets_of_a_run_that_were_told_stay(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """The replica knows that the first target runs, and nothing of the second one and of the end of the run."""
    api, first, second = api_of(nodes[1]), await dial(nodes[0], "first"), await dial(nodes[0], "second")
    await asyncio.gather(first.greet(), second.greet())
    body = {"agents": ["first", "second"], "method": "work", "concurrency": 1}
    run = str((await api.http.post("/v1/runs", json=body)).json()["id"])
    command = (await first.expect(Cmd)).id
    await redis.in_step()
    redis.hold()
    for peer in (first, second):
        if peer is second:
            command = (await peer.expect(Cmd)).id
        await peer.send(Ack(id=command))
        await peer.send_output(command, 0, "the same")
        await peer.send(End(id=command, total=1, state="ok", payload=b"7"))
    told = await _lines_of_the_run(api, run)
    assert [line["state"] for line in told] == ["ok", "ok"]
    await fail_over(redis)
    for gateway in nodes:
        assert sorted(await _lines_of_the_run(api_of(gateway), run), key=str) == sorted(told, key=str)
    marker = await start(api, agent="second")
    assert (await second.expect(Cmd)).id == marker, "a target must not run twice"


async def _lines_of_the_run(api: GatewayApi, run: str) -> list[dict[str, Any]]:
    """How its targets have ended, once it has ended."""

    async def ended() -> bool:
        answer = await answered(lambda: api.http.get(f"/v1/runs/{run}"))
        return bool(answer.json()["ended"])

    await until(ended, 60)
    answer = await answered(lambda: api.http.get(f"/v1/runs/{run}/results?from=0&follow=false"))
    return [line for raw in answer.text.splitlines() if "agent" in (line := json.loads(raw))]


async def test_a_cancel_that_was_told_by_another_node_stays_told(
    redis: Replicas, nodes: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    await known_agent(dial, nodes[0])
    await redis.in_step()
    redis.hold()
    api, other = api_of(nodes[1]), api_of(nodes[0])
    command = await start(api, **QUEUED)
    assert (await other.http.delete(f"/v1/commands/{command}")).json()["state"] == "cancelled"
    await fail_over(redis)
    found = await read(api, command)
    assert (found["state"], found["truncated"]) == ("cancelled", False)


async def _has_output(api: GatewayApi, command: str) -> bool:
    lines = await api.lines(command, follow=False)
    return any(line.get("text") for line in lines)


async def _is_in_redis(redis: Replicas, command: str, state: str) -> bool:
    return await state_in_redis(redis, command) == state


async def _is_set_aside(redis: Replicas, command: str) -> bool:
    return bool(await redis.primary.call("EXISTS", aside_key(command)))


async def _is_forgotten(redis: Replicas, command: str) -> bool:
    return not await _is_set_aside(redis, command)
