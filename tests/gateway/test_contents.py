"""Contents: octets that are stored once, read from Redis once by each node, and sent to the agents that lack them."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.agent.builtin import builtin_agent
from fairlead.fleet.contents.content_store import content_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.messages import Ack, Chunk, Cmd, Credit, End

from support.agent.hosted_agents import HostedAgents
from support.cli.processes import environment
from support.fixtures import RedisOf
from support.gateway.metrics import metric
from support.gateway.platform_api import FITTING, GatewayApi, MakeGatewayApi, fitting
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN, DialAgent
from support.waiting import until

SCRIPT = b"echo from $1; exit 4\n" + b"#" * 100_000
DIGEST = hashlib.sha256(SCRIPT).hexdigest()


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[HostedAgents]:
    made = HostedAgents()
    yield made
    await made.stop()


async def put(api: GatewayApi, content: bytes, digest: str = "") -> int:
    digest = digest or hashlib.sha256(content).hexdigest()
    headers = {"content-type": "application/octet-stream"}
    return int((await api.http.put(f"/v1/contents/{digest}", content=content, headers=headers)).status_code)


async def online(api: GatewayApi, names: list[str]) -> None:
    async def all_are() -> bool:
        answers = [await api.http.get(f"/v1/agents/{name}") for name in names]
        return all(answer.status_code == 200 and answer.json()["state"] == "online" for answer in answers)

    await until(all_are)


async def ended(api: GatewayApi, run: str) -> dict[str, int]:
    async def over() -> bool:
        return bool((await api.http.get(f"/v1/runs/{run}")).json()["ended"])

    await until(over)
    return dict((await api.http.get(f"/v1/runs/{run}")).json()["counts"])


async def test_a_content_is_stored_under_its_digest_alone(gateway: GatewayProcess, api: GatewayApi) -> None:
    stored = await api.http.put(f"/v1/contents/{DIGEST}", content=SCRIPT)
    assert (stored.status_code, stored.json()) == (200, {"digest": DIGEST, "bytes": len(SCRIPT)})
    assert await put(api, SCRIPT) == 200
    other = await api.http.put(f"/v1/contents/{DIGEST}", content=SCRIPT + b"!")
    assert (other.status_code, other.json()["field"]) == (422, "digest")
    assert await put(api, SCRIPT, DIGEST.upper()) == 422
    assert await put(api, bytes((1 << 20) + 1)) == 413
    for path, body in (
        ("/v1/runs", {"method": "script", "agents": ["a"], "content": "0" * 64}),
        ("/v1/commands", {"method": "script", "agent": "a", "content": "0" * 64}),
    ):
        unknown = await api.http.post(path, json={**body, "payload": FITTING["script"]})
        assert (unknown.status_code, unknown.json()["field"]) == (422, "content"), unknown.text


async def test_a_node_reads_it_once_and_an_agent_asks_once(
    make_gateway: MakeGateway,
    own_valkey: EmbeddedValkey,
    api_of: MakeGatewayApi,
    hosted: HostedAgents,
    redis_of: RedisOf,
    tmp_path: Path,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    names = [f"host-{n}" for n in range(8)]
    for name in names:
        hosted.host(builtin_agent(gateway.link, name, AGENT_TOKEN, journal=tmp_path / name))
    await online(api, names)
    assert await put(api, SCRIPT) == 200
    payload = {"digest": DIGEST, "size": len(SCRIPT), "arguments": ["here"]}
    body = {"method": "script", "agents": names, "content": DIGEST, "payload": payload, "fail_on_exit": True}

    async def play() -> None:
        posted = await api.http.post("/v1/runs", json=body)
        assert posted.status_code == 202, posted.text
        assert await ended(api, posted.json()["id"]) == {"failed": 8}
        outcomes = (await api.http.get(f"/v1/runs/{posted.json()['id']}")).json()["outcomes"]
        assert [(one["code"], one["count"]) for one in outcomes] == [("exit_4", 8)]
        lines = (await api.http.get(f"/v1/runs/{posted.json()['id']}/results")).text
        assert lines.count("from here") == 8

    await play()
    assert await metric(gateway, "fairlead_content_reads_total") == 1
    assert await metric(gateway, "fairlead_content_cache_bytes") == len(SCRIPT)
    await (await redis_of(own_valkey)).submit("DEL", content_key(DIGEST))
    assert await put(api, SCRIPT) == 200
    await play()  # each of them has kept it
    assert await metric(gateway, "fairlead_content_reads_total") == 1


async def test_the_command_line_stores_a_file_and_runs_it(
    gateway: GatewayProcess, api: GatewayApi, hosted: HostedAgents, tmp_path: Path
) -> None:
    hosted.host(builtin_agent(gateway.link, "cli-host", AGENT_TOKEN))
    await online(api, ["cli-host"])
    (tmp_path / "fix.sh").write_bytes(b"echo fixed $*; exit 2\n")
    line = [
        sys.executable, "-P", "-m", "fairlead", "run", "script", "--agents", "cli-host", "--file",
        str(tmp_path / "fix.sh"), 'arguments:=["a", "b"]',
    ]  # fmt: skip
    done = await asyncio.to_thread(
        lambda: subprocess.run(line, capture_output=True, timeout=60, check=False, env=environment(gateway.api))
    )
    assert done.returncode == 1
    assert b"== 1 agent failed (exit_2): cli-host\nfixed a b\n" in done.stdout


async def test_it_is_sent_to_agents_that_ask_and_to_no_other(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    assert await put(api, SCRIPT) == 200
    command = await api.start(peer.agent, "script", content=DIGEST)
    second = await api.start(peer.agent, "nothing")
    assert (await peer.expect(Cmd)).id == command
    between = await peer.receive()
    assert isinstance(between, Cmd), between  # and no input of the first one
    assert between.id == second
    await peer.send(Ack(id=command), Credit(id=command, bytes=0))
    first, rest, end = await peer.expect(Chunk), await peer.expect(Chunk), await peer.expect(End)
    assert (first.n, rest.n, end.id, end.total) == (0, 1, command, 2)
    assert first.payload + rest.payload == SCRIPT


async def test_the_rest_is_sent_over_the_next_link(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    assert await put(api, SCRIPT) == 200
    command = await api.start(peer.agent, "script", content=DIGEST)
    await peer.command()
    await peer.send(Ack(id=command), Credit(id=command, bytes=0))
    first = await peer.expect(Chunk)
    again = await dial(gateway, peer.agent)
    await again.greet(conn=2, have={command: 1})  # the second chunk was not taken
    await again.send(Credit(id=command, bytes=0))
    rest, end = await again.expect(Chunk), await again.expect(End)
    assert (rest.n, end.total, first.payload + rest.payload) == (1, 2, SCRIPT)


async def test_a_content_that_is_gone_ends_the_input(
    make_gateway: MakeGateway,
    own_valkey: EmbeddedValkey,
    api_of: MakeGatewayApi,
    dial: DialAgent,
    redis_of: RedisOf,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, peer = api_of(gateway), await dial(gateway)
    await peer.greet()
    assert await put(api, SCRIPT) == 200
    command = await api.start(peer.agent, "script", content=DIGEST)
    await peer.command()
    # not what its digest says
    await (await redis_of(own_valkey)).submit("SET", content_key(DIGEST), b"other octets")
    await peer.send(Ack(id=command), Credit(id=command, bytes=0))
    assert (await peer.expect(End)).total == 0


async def test_it_is_kept_until_after_the_deadline_of_whatever_names_it(
    make_gateway: MakeGateway,
    own_valkey: EmbeddedValkey,
    api_of: MakeGatewayApi,
    dial: DialAgent,
    redis_of: RedisOf,
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, peer = api_of(gateway), await dial(gateway)
    await peer.greet()
    assert await put(api, SCRIPT) == 200
    redis = await redis_of(own_valkey)

    async def hours() -> float:
        return integer(await redis.submit("PTTL", content_key(DIGEST))) / 3600_000

    assert 0.9 < await hours() <= 1
    await api.start(peer.agent, "script", content=DIGEST, deadline=7200)
    assert 2.9 < await hours() <= 3
    run = {
        "method": "script", "agents": [peer.agent], "content": DIGEST, "payload": fitting("script", DIGEST),
        "run_deadline": 36_000,
    }  # fmt: skip
    assert (await api.http.post("/v1/runs", json=run)).status_code == 202
    assert 10.9 < await hours() <= 11
    await api.start(peer.agent, "script", content=DIGEST, deadline=60)
    assert 10.9 < await hours() <= 11
