"""Answers to posts stay true: a key means one command for 24 hours, and a refused command does not run."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Awaitable
from typing import Any

import httpx2
import pytest

from fairlead.fleet.schema import cmd_key
from fairlead.shards import agent_shard
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, End

from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def post(api: GatewayApi, key: str, body: str) -> httpx2.Response:
    return await api.http.post("/v1/commands", content=body, headers={"idempotency-key": key})


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_repeated_post_after_retention_names_the_outcome_and_runs_nothing(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    redis_of: RedisOf,
    restarted: bool,
) -> None:
    """This holds even if the agent was restarted and has forgotten that it ran the command."""
    gateway = make_gateway(own_valkey.url, "--retention", "1")
    api, store = api_of(gateway), await redis_of(own_valkey)
    peer = await dial(gateway)
    await peer.greet(boot="boot-1")
    body = json.dumps({"agent": peer.agent, "method": "work", "deadline": 10})
    first = (await post(api, "key", body)).json()["id"]
    await peer.command()
    await peer.send(Ack(id=first), End(id=first, total=0, payload=b"1"))

    async def gone() -> bool:
        return bool(await store.submit("EXISTS", cmd_key(first)) == 0)

    await until(gone)
    if restarted:
        again = await dial(gateway, peer.agent)
        await again.greet(boot="boot-2")
        peer = again
    for accept in ("application/json", "application/x-ndjson"):
        headers = {"idempotency-key": "key", "accept": accept}
        answer = await api.http.post("/v1/commands", content=body, headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (410, "record_expired")
        assert (problem["id"], problem["state"], problem["temporary"]) == (first, "ok", False)
    other = (await post(api, "another key", body)).json()["id"]
    assert (await peer.command()).id == other  # and nothing came before it


async def test_a_body_is_the_same_when_it_means_the_same(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    name, key = json.dumps(peer.agent), f"meaning-{peer.agent}"
    plain = '{"agent":%s,"method":"work","payload":{"a":1,"b":"é"}}'
    first = await post(api, key, plain % name)
    assert first.status_code == 202
    for same in (
        '{ "payload": {"b":"\\u00e9", "a":1.0}, "method":"work", "agent":%s }',
        '{"agent":%s,"method":"w\\u006frk","deadline":60,"lane":"interactive","payload":{"a":1e0,"b":"é"}}',
        '{"agent":%s,"method":"work","on_offline":"fail","retry":"never","retain":"all","payload":{"a":1,"b":"é"}}',
    ):
        again = await post(api, key, same % name)
        assert (again.status_code, again.json()["id"]) == (202, first.json()["id"]), same
        assert again.headers["idempotency-replayed"] == "true"
    for other in (
        '{"agent":%s,"method":"work","payload":{"a":2,"b":"é"}}',
        '{"agent":%s,"method":"work","payload":{"a":1,"b":"é"},"deadline":61}',
        '{"agent":%s,"method":"work"}',
    ):
        answer = await post(api, key, other % name)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict"), other
    large = '{"agent":%s,"method":"work","payload":{"x":%s,"y":"%s"}}'
    one = await post(api, f"{key}-large", large % (name, "1", "z" * 100_000))
    two = await post(api, f"{key}-large", large % (name, "1.0", "z" * 100_000))
    assert one.json()["id"] == two.json()["id"]


async def test_the_same_key_of_another_agent_is_another_command(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """Also of an agent in the same shard, where both keys are."""
    first = await dial(gateway)
    name = next(name for n in range(10_000) if agent_shard(name := f"same-{n}") == agent_shard(first.agent))
    peers = [first, await dial(gateway), await dial(gateway, name)]
    for peer in peers:
        await peer.greet()
    ids, key = [], f"shared-{first.agent}"
    for peer in peers:
        body = json.dumps({"agent": peer.agent, "method": "work"})
        posted = await post(api, key, body)
        assert (posted.status_code, "idempotency-replayed" in posted.headers) == (202, False)
        assert (await peer.command()).id == posted.json()["id"]
        ids.append(posted.json()["id"])
    assert len(set(ids)) == 3
    for peer, id in zip(peers, ids, strict=True):
        again = await post(api, key, json.dumps({"agent": peer.agent, "method": "work"}))
        assert (again.json()["id"], again.headers["idempotency-replayed"]) == (id, "true")


async def test_of_many_posts_at_once_one_is_the_first_and_the_others_are_repetitions(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """At two nodes, as a stream and as a document."""
    nodes = [make_gateway(own_valkey.url, name=name) for name in ("one", "two")]
    apis = [api_of(node) for node in nodes]
    peer = await dial(nodes[0])
    await peer.greet()
    for turn in range(10):
        body = json.dumps({"agent": peer.agent, "method": "work"})

        async def first_line(at: int, turn: int = turn, body: str = body) -> tuple[str, bool]:
            accept = "application/x-ndjson" if at // 2 % 2 else "application/json"
            headers = {"idempotency-key": f"at once {turn}", "accept": accept}
            async with apis[at % 2].http.stream("POST", "/v1/commands", content=body, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    return json.loads(line)["id"], "idempotency-replayed" in answer.headers
            raise AssertionError("no line came")

        answers = await asyncio.gather(*map(first_line, range(6)))
        assert len({command for command, _ in answers}) == 1
        assert sorted(replayed for _, replayed in answers) == [False, *[True] * 5]
        assert (await peer.command()).id == answers[0][0]  # and nothing of the turn before


async def answer_of(call: Awaitable[Any], redis: int, frozen: float) -> Any:
    """The response to a request that is made while Redis is frozen for so many seconds."""
    os.kill(redis, signal.SIGSTOP)
    try:
        asked = asyncio.ensure_future(call)
        await asyncio.sleep(frozen)  # the fault itself, which has a length
    finally:
        os.kill(redis, signal.SIGCONT)
    return await asked


@pytest.mark.timeout(120)
async def test_a_command_that_was_refused_never_runs(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    """The server finds the command in its buffer when it wakes, long or shortly after the caller got an error."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()

    async def answers() -> bool:
        return await metric(gateway, "fairlead_redis_up") == 1

    for frozen in (1.5, 2.5):
        answer = await answer_of(api.post({"agent": peer.agent, "method": "frozen"}), own_valkey.pid, frozen)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["temporary"]) == (503, "bus_unavailable", True), problem
        # Told by the node, which gave up, or by the script in Redis, which found the command too old: both are sure. It
        # was not even sent if another call was on its way when Redis froze.
        sure = ("was not accepted", "was not executed", "was not sent")
        assert any(words in problem["detail"] for words in sure), problem
        await until(answers)  # a node that has noticed the outage sends nothing until then
    assert (await api.agent(peer.agent))["open_commands"] == []
    command = await api.start(peer.agent, method="after")
    cmd = await peer.command()
    assert (cmd.id, cmd.method) == (command, "after")  # and none of the others came before it


@pytest.mark.timeout(120)
async def test_a_post_with_unknown_outcome_says_so_and_how_to_find_out(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    peer = await dial(gateway)
    await peer.greet()
    answer = await answer_of(api.post({"agent": peer.agent, "method": "frozen"}), own_valkey.pid, 8)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["temporary"]) == (503, "outcome_unknown", True), problem
    while (found := await api.http.get(f"/v1/commands/{problem['id']}")).status_code == 503:
        await asyncio.sleep(0.1)
    assert found.status_code == 404  # it was not executed, as the caller has now found out
    while (again := await api.post({"agent": peer.agent, "method": "after"})).status_code == 503:
        await asyncio.sleep(0.1)
    assert (await peer.command()).method == "after"
    assert again.status_code == 202


async def test_the_same_key_posted_twice_at_once_is_one_command_for_both(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    headers = {"idempotency-key": f"key-{peer.agent}", "accept": "application/x-ndjson"}
    body = {"agent": peer.agent, "method": "work"}
    posts = [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(8)]
    command = (await peer.command()).id
    await peer.send_output(command, 0, "once")
    await peer.send(End(id=command, total=1))
    for post in posts:
        lines = [json.loads(line) for line in (await post).text.splitlines()]
        assert lines[0]["id"] == command
        assert [line["text"] for line in lines if "text" in line] == ["once"]
        assert lines[-1]["end"]["state"] == "ok"

    async def left() -> bool:
        return await metric(gateway, "fairlead_followers") == 0

    await until(left)


async def test_a_refused_post_does_not_affect_its_repetition(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    """Two posts with one key while the agent is unknown, and then a third: at most one command runs."""
    agent = f"late-{secrets.token_hex(4)}"
    headers = {"idempotency-key": f"twins-{agent}"}
    body = {"agent": agent, "method": "work"}
    posts = [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(6)]
    peer = await dial(gateway, agent)
    await peer.greet()
    posts += [asyncio.ensure_future(api.http.post("/v1/commands", json=body, headers=headers)) for _ in range(3)]
    answers = [await post for post in posts]
    accepted = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    assert all(answer.status_code in (202, 404) for answer in answers)
    assert accepted
    ends = [(await api.get(command))["state"] for command in accepted]
    assert sum(state != "failed" for state in ends) == 1  # the others were told 404, and did not run
    cmd = await peer.command()
    assert cmd.id in accepted
