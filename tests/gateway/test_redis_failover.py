"""A replica without the last moment becomes the primary: what was told stays true, and nothing runs twice.

The primary is killed while its replica hears nothing; the nodes reach both behind one address.
"""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.client import Client, Command
from fairlead.fleet.schema import cmd_key
from fairlead.shards import of_agent
from fairlead.wire.messages import Ack, Cancel, Cmd, End

from support.gateway.metrics import metric
from support.gateway.platform_api import PLATFORM_TOKEN, GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.replicas import Replicas
from support.waiting import until

pytestmark = pytest.mark.timeout(120)
AGENT = "host"
QUEUED = {"on_offline": {"queue": 60}, "deadline": 60}


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        yield replicas


@pytest.fixture
async def gateways(redis: Replicas, tmp_path: Path) -> AsyncIterator[list[GatewayProcess]]:
    """The agent is at the first node, callers at the second. They reach Redis through this process, so nothing here may
    block it."""
    made = [GatewayProcess(tmp_path, redis.url, (), name) for name in ("node-1", "node-2")]
    try:
        await asyncio.gather(*(asyncio.to_thread(gateway.start) for gateway in made))
        yield made
    finally:
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in made))


@pytest.fixture
def api(gateways: list[GatewayProcess], api_of: MakeGatewayApi) -> GatewayApi:
    return api_of(gateways[1])


async def fail_over(redis: Replicas, *, silent: bool = False) -> None:
    """Lose everything since `redis.hold`."""
    redis.primary.kill()
    await redis.promote(silent=silent)


async def _knows(gateway: GatewayProcess, redis: Replicas) -> bool:
    """Whether a node is connected to the primary of now."""
    clients = (await redis.primary.call("CLIENT", "LIST")).decode()
    return await metric(gateway, "fairlead_redis_up") == 1 and "name=fairlead." in clients


async def state_in_redis(redis: Replicas, command: str) -> str:
    row = await redis.primary.call("HGET", cmd_key(command), f"t:{AGENT}")
    return str(row.decode().partition("|")[0]) if row is not None else "gone"


async def known_agent(dial: DialAgent, gateway: GatewayProcess) -> None:
    """An agent that was linked and is away."""
    peer = await dial(gateway, AGENT)
    await peer.greet()
    await peer.socket.close()


async def sent_behind_the_replica(
    redis: Replicas, api: GatewayApi, dial: DialAgent, gateway: GatewayProcess, **more: object
) -> tuple[str, ScriptedAgent]:
    """A command that the agent runs, and of which the replica knows only that it waits for the agent."""
    await known_agent(dial, gateway)
    command = await start(api, **QUEUED, **more)
    await redis.in_step()
    redis.hold()
    peer = await dial(gateway, AGENT)
    await peer.greet(boot="boot-2")
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await until(lambda: _is(api, command, "running"))
    return command, peer


async def answered(call: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The answer to a request that is repeated while Redis is away, as callers do."""
    async with asyncio.timeout(30):
        while (answer := await call()).status_code == 503:
            assert answer.json()["code"] in ("bus_unavailable", "rebuilding"), answer.text
            await asyncio.sleep(0.05)
    return answer


async def read(api: GatewayApi, command: str) -> dict[str, Any]:
    answer = await answered(lambda: api.http.get(f"/v1/commands/{command}"))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def end(api: GatewayApi, command: str) -> dict[str, Any]:
    """How it ended, as whoever follows it is told."""
    await read(api, command)
    return await api.end(command)


async def start(api: GatewayApi, **more: object) -> str:
    answer = await answered(lambda: api.post({"agent": AGENT, "method": "work", **more}))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def _is(api: GatewayApi, command: str, state: str) -> bool:
    return bool((await read(api, command))["state"] == state)


async def _has(api: GatewayApi, command: str, text: str) -> bool:
    return any(line.get("text") == text for line in await api.lines(command, follow=False))


@pytest.mark.parametrize("silent", [False, True], ids=["connections-are-lost", "connections-stay"])
async def test_a_command_whose_delivery_was_lost_does_not_run_again_in_the_agents_next_process(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent, silent: bool
) -> None:
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await fail_over(redis, silent=silent)
    assert await state_in_redis(redis, command) == "queued"
    await peer.socket.close()
    following = await dial(gateways[1], AGENT)
    await following.greet(boot="boot-3")
    assert (await end(api, command))["error"]["code"] == "outcome_unknown"
    marker = await start(api)
    assert (await following.expect(Cmd)).id == marker, "the first command must not be sent to the next process"


async def test_a_command_whose_delivery_was_lost_after_it_was_offered_does_not_run_again(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    """The replica knows that it was offered to the agent's link, and not that it runs."""
    peer = await dial(gateways[0], AGENT)
    await peer.greet()
    gateways[0].signal(signal.SIGSTOP)
    try:
        command = await start(api)
        await redis.in_step()
        redis.hold()
    finally:
        gateways[0].signal(signal.SIGCONT)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await until(lambda: _is(api, command, "running"))
    await fail_over(redis)
    assert await state_in_redis(redis, command) == "sent"
    await peer.socket.close()
    following = await dial(gateways[1], AGENT)
    await following.greet(boot="boot-2")
    assert (await end(api, command))["error"]["code"] == "outcome_unknown"
    marker = await start(api)
    assert (await following.expect(Cmd)).id == marker, "the first command must not be sent to the next process"


async def test_a_read_of_a_signed_command_whose_delivery_was_lost_waits_for_the_nodes_that_know(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    """Its caller has chosen its id, which tells no time."""
    id = of_agent(str(uuid.uuid4()), AGENT)
    command, _ = await sent_behind_the_replica(redis, api, dial, gateways[0], id=id, signature="c2lnbmVk")
    gateways[0].signal(signal.SIGSTOP)
    try:
        await fail_over(redis)
        answer = await api.http.get(f"/v1/commands/{command}")
        assert answer.status_code == 503 or answer.json()["state"] == "running", answer.text
    finally:
        gateways[0].signal(signal.SIGCONT)
    assert (await read(api, command))["state"] in ("sent", "running")


async def test_delete_of_a_command_whose_delivery_was_lost_reaches_the_agent_that_runs_it(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await fail_over(redis)
    answer = await answered(lambda: api.http.delete(f"/v1/commands/{command}"))
    assert answer.json()["state"] != "cancelled", "it runs"
    assert (await peer.expect(Cancel)).id == command
    await peer.send(End(id=command, total=0, state="cancelled"))
    assert (await end(api, command))["state"] == "cancelled"


async def test_an_agent_is_not_deleted_before_the_nodes_have_said_what_it_runs(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await peer.socket.close()
    gateways[0].signal(signal.SIGSTOP)
    try:
        await fail_over(redis)
        await until(lambda: _knows(gateways[1], redis))
        answer = await api.http.delete(f"/v1/agents/{AGENT}")
        assert answer.status_code == 503, answer.text
    finally:
        gateways[0].signal(signal.SIGCONT)
    await answered(lambda: api.http.delete(f"/v1/agents/{AGENT}"))
    assert (await read(api, command))["state"] != "cancelled", "it may have run"


async def test_output_after_a_lost_delivery_belongs_to_the_process_that_sends_it(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    """The record says which process has the command, so that a new link of the same process continues it."""
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await fail_over(redis)
    await peer.send_output(command, 0, "one ")
    await until(lambda: _is(api, command, "running"))
    await peer.socket.close()
    again = await dial(gateways[1], AGENT)
    welcome = await again.greet(boot="boot-2", conn=2)
    assert command in welcome.have
    await again.send_output(command, welcome.have[command], "two")
    await again.send(End(id=command, total=welcome.have[command] + 1, state="ok"))
    assert (await end(api, command))["state"] == "ok"


@pytest.mark.parametrize("silent", [False, True], ids=["connections-are-lost", "connections-stay"])
async def test_an_end_that_was_told_stays_with_all_its_results(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent, silent: bool
) -> None:
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await peer.send_output(command, 0, "all of ")
    await peer.send_output(command, 1, "it")
    await peer.send(End(id=command, total=2, state="ok", payload=b"7"))
    told = await end(api, command)
    assert told["state"] == "ok"
    await fail_over(redis, silent=silent)
    assert await state_in_redis(redis, command) == "queued"
    found = await read(api, command)
    assert (found["state"], found["truncated"]) == ("ok", False)
    assert await api.output(command) == "all of it"
    assert (await end(api, command))["payload"] == told["payload"]


async def test_an_accepted_command_that_redis_has_lost_ends_as_record_lost_and_does_not_run_under_its_key(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    await known_agent(dial, gateways[0])
    await redis.in_step()
    redis.hold()
    body = {"agent": AGENT, "method": "work", **QUEUED}
    key = {"idempotency-key": "the same"}
    command = (await answered(lambda: api.post(body, **key))).json()["id"]
    await fail_over(redis)
    repeated = await answered(lambda: api.post(body, **key))
    assert (repeated.json()["id"], repeated.json()["state"]) == (command, "failed")
    assert (await end(api, command))["error"]["code"] == "record_lost"
    peer = await dial(gateways[0], AGENT)
    await peer.greet(boot="boot-2")
    marker = await start(api)
    assert (await peer.expect(Cmd)).id == marker


async def test_a_running_command_that_redis_has_lost_is_stopped(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateways[0], AGENT)
    await peer.greet()
    await redis.in_step()
    redis.hold()
    command = await start(api)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await until(lambda: _is(api, command, "running"))
    await fail_over(redis)
    assert (await peer.expect(Cancel)).id == command
    assert (await end(api, command))["error"]["code"] == "record_lost"


@pytest.mark.parametrize("follow", [False, True], ids=["once", "following"])
async def test_a_reader_of_results_that_redis_has_lost_is_told_how_the_command_ended(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent, follow: bool
) -> None:
    peer = await dial(gateways[0], AGENT)
    await peer.greet()
    await redis.in_step()
    redis.hold()
    command = await start(api)
    assert (await peer.expect(Cmd)).id == command
    await peer.send_output(command, 0, "read")
    await until(lambda: _has(api, command, "read"))
    await fail_over(redis)
    assert (await end(api, command))["error"]["code"] == "record_lost"
    (told,) = await api.lines(command, 1, follow)
    assert told["end"]["error"]["code"] == "record_lost"


async def test_a_reader_of_results_that_nobody_can_say_again_is_told_how_the_command_ended(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    """The node that stored them died with the primary, and the agent did not come back."""
    peer = await dial(gateways[0], AGENT)
    await peer.greet()
    command = await start(api)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await until(lambda: _is(api, command, "running"))
    await redis.in_step()
    redis.hold()
    await peer.send_output(command, 0, "read")
    await until(lambda: _has(api, command, "read"))
    gateways[0].signal(signal.SIGKILL)
    await fail_over(redis)
    assert (await answered(lambda: api.http.delete(f"/v1/commands/{command}"))).status_code == 202
    told = await api.lines(command, 1)
    assert [line["end"]["error"]["code"] for line in told] == ["cancel_unconfirmed"]


async def test_a_follower_of_results_that_redis_has_lost_is_told_that_the_command_runs_again(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    """The output of the second run does not follow on that of the first one."""
    peer = await dial(gateways[0], AGENT)
    await peer.greet(boot="boot-1")
    command = await start(api, retry="safe", deadline=60)
    assert (await peer.expect(Cmd)).id == command
    await peer.send(Ack(id=command))
    await until(lambda: _is(api, command, "running"))
    await redis.in_step()
    redis.hold()
    for n in range(3):
        await peer.send_output(command, n, f"first {n}")
    await until(lambda: _has(api, command, "first 2"))
    gateways[0].signal(signal.SIGKILL)
    await fail_over(redis)
    await read(api, command)
    async with (
        api.http.stream("GET", f"/v1/commands/{command}/results?from=3&follow=true") as follower,
        Client(gateways[1].api, PLATFORM_TOKEN) as client,
        client.attach(command, 3) as attached,
    ):
        given = asyncio.create_task(_given(attached))
        lines = follower.aiter_lines()
        for _ in range(2):
            assert await anext(lines) == "{}", "it waits"
        following = await dial(gateways[1], AGENT)
        await following.greet(boot="boot-2")
        assert (await following.expect(Cmd)).id == command
        for n in range(5):
            await following.send_output(command, n, f"second {n}")
        await following.send(End(id=command, total=5))
        told = [json.loads(line) for line in [line async for line in lines] if line != "{}"]
        assert await given == ["", *(f"second {n}" for n in range(5))]
    assert [line.get("text") for line in told[1:-1]] == [f"second {n}" for n in range(5)]
    assert (told[0]["kind"], told[0]["offset"], told[-1]["end"]["state"]) == ("retry", 0, "ok")


async def _given(command: Command) -> list[str]:
    """What a caller of the client gets."""
    return [chunk.data.decode() async for chunk in command]


async def test_a_cancel_that_was_told_stays_told(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    await known_agent(dial, gateways[0])
    command = await start(api, **QUEUED)
    await redis.in_step()
    redis.hold()
    assert (await api.http.delete(f"/v1/commands/{command}")).json()["state"] == "cancelled"
    await fail_over(redis)
    assert await state_in_redis(redis, command) == "queued"
    peer = await dial(gateways[0], AGENT)
    await peer.greet(boot="boot-2")
    marker = await start(api)
    assert (await peer.expect(Cmd)).id == marker, "a cancelled command must not be sent"
    assert (await read(api, command))["state"] == "cancelled"


async def test_a_failover_behind_connections_that_stay_is_noticed_by_an_idle_node(
    redis: Replicas, gateways: list[GatewayProcess]
) -> None:
    await redis.promote(silent=True)

    async def noticed() -> bool:
        return [await metric(gateway, "fairlead_redis_failovers_total") for gateway in gateways] == [1, 1]

    await until(noticed, 30)


async def test_two_failovers_in_a_row_lose_nothing_that_was_told(
    redis: Replicas, gateways: list[GatewayProcess], api: GatewayApi, dial: DialAgent
) -> None:
    command, peer = await sent_behind_the_replica(redis, api, dial, gateways[0])
    await peer.send(End(id=command, total=0, state="ok"))
    assert (await end(api, command))["state"] == "ok"
    old = redis.primary
    await fail_over(redis)
    assert (await read(api, command))["state"] == "ok"
    await old.start()
    await redis.follow(old)
    await redis.in_step()
    redis.hold()
    second = await start(api)
    assert (await peer.expect(Cmd)).id == second
    await peer.send(Ack(id=second), End(id=second, total=0, state="ok"))
    assert (await end(api, second))["state"] == "ok"
    await fail_over(redis)
    async with asyncio.timeout(30):
        assert (await read(api, command))["state"] == "ok"
        assert (await read(api, second))["state"] in ("ok", "failed")
