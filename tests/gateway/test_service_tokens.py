"""The life of a service token: shown once, stored as a digest, expiring, noted when used, and revoked everywhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from fairlead.fleet.directory import Directory
from fairlead.fleet.directory_replies import LabelsChanged
from fairlead.fleet.schema import SERVICE_TOKENS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import table
from fairlead.wire.messages import Ack, Chunk

from support.fixtures import RedisOf
from support.gateway.platform_api import PLATFORM_TOKEN, GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import ROLES, as_caller, create_token, write_roles
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client
from support.waiting import until

WITHIN = 5.0
"""Seconds in which a revocation holds on every node."""


def started(make: MakeGateway, redis: str, folder: Path, *names: str) -> list[GatewayProcess]:
    write_roles(folder / "roles.yaml")
    return [make(redis, "--roles", str(folder / "roles.yaml"), name=name) for name in names]


async def until_status(api: GatewayApi, status: int, within: float = WITHIN) -> float:
    """Seconds until a list of agents is answered with this status."""
    begun = time.monotonic()
    async with asyncio.timeout(within):
        while (await api.http.get("/v1/agents")).status_code != status:
            await asyncio.sleep(0.02)
    return time.monotonic() - begun


async def test_a_revoked_token_is_refused_by_every_node_with_its_streams(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    one, two = started(make_gateway, own_valkey.url, tmp_path, "node-1", "node-2")
    admin = api_of(one)
    agent = await dial(one)
    await agent.greet()
    await admin.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "dev"}})
    text = await create_token(admin, "ci")
    here, there = as_caller(api_of, one, text), as_caller(api_of, two, text)
    assert (await here.http.get("/v1/agents")).status_code == 200  # at once on the node that created it
    await until_status(there, 200)
    command = await there.start(agent.agent, "exec")
    await agent.command()
    await agent.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"begun"))
    async with there.http.stream("GET", f"/v1/commands/{command}/results?follow=true") as stream:
        lines = stream.aiter_lines()
        assert json.loads(await anext(lines))["text"] == "begun"
        id = (await admin.http.get("/v1/tokens")).json()["tokens"][0]["id"]
        assert (await admin.http.delete(f"/v1/tokens/{id}")).status_code == 204
        begun = time.monotonic()
        assert (await here.http.get("/v1/agents")).status_code == 401  # at once on the node that revoked it
        await until_status(there, 401)
        async with asyncio.timeout(WITHIN - (time.monotonic() - begun)):
            last = [line async for line in lines][-1]
    assert json.loads(last)["error"]["code"] == "unauthorized"
    assert (await admin.http.delete(f"/v1/tokens/{id}")).status_code == 404
    # It stays revoked when everything starts again.
    for gateway in (one, two):
        gateway.stop()
    one.start()
    assert (await here.http.get("/v1/agents")).status_code == 401
    assert (await admin.http.get("/v1/tokens")).json() == {"tokens": []}


async def test_a_token_survives_restarts_and_leaves_no_secret_behind(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, redis_of: RedisOf
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    text = await create_token(admin, "looker")
    caller = as_caller(api_of, gateway, text)
    assert (await caller.http.get("/v1/agents")).status_code == 200
    listed = (await admin.http.get("/v1/tokens")).json()["tokens"]
    assert [(one["name"], one["created_by"], one["roles"]) for one in listed] == [("looker", "shared-token", None)]
    _, id, secret = text.split("_", 2)
    assert listed[0]["id"] == id
    async with asyncio.timeout(10):
        while (await admin.http.get("/v1/tokens")).json()["tokens"][0]["used"] is None:
            await asyncio.sleep(0.05)
    store = await redis_of(own_valkey)
    stored = str(table(await store.submit("HGETALL", SERVICE_TOKENS)))
    assert id in stored
    assert secret not in stored
    gateway.stop()
    assert secret not in gateway.log()
    gateway.start()
    assert (await caller.http.get("/v1/agents")).status_code == 200


async def test_a_token_expires(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, redis_of: RedisOf
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    caller = as_caller(api_of, gateway, await create_token(admin, "looker", lifetime=60))
    assert (await caller.http.get("/v1/agents")).status_code == 200
    # The shortest lifetime is a minute, so the test moves its end.
    store = await redis_of(own_valkey)
    id = (await admin.http.get("/v1/tokens")).json()["tokens"][0]["id"]
    stored = json.loads(table(await store.submit("HGETALL", SERVICE_TOKENS))[f"token:{id}".encode()])
    stored["expires"] -= 60_000
    await store.submit("HSET", SERVICE_TOKENS, f"token:{id}", json.dumps(stored), "revision", "moved")
    await until_status(caller, 401)
    assert "has expired: create a new one" in (await caller.http.get("/v1/agents")).json()["detail"]
    assert [one["expired"] for one in (await admin.http.get("/v1/tokens")).json()["tokens"]] == [True]


async def test_without_redis_service_tokens_are_refused_as_long_as_revocations_are_unknown(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    caller = as_caller(api_of, gateway, await create_token(admin, "looker"))
    url = "/v1/openapi.json"  # which needs no Redis
    assert (await caller.http.get(url)).status_code == 200
    os.kill(own_valkey.pid, signal.SIGSTOP)
    begun = time.monotonic()
    async with asyncio.timeout(WITHIN):
        while (answer := await caller.http.get(url)).status_code != 503:
            await asyncio.sleep(0.05)
    assert time.monotonic() - begun < WITHIN
    assert answer.json()["code"] == "bus_unavailable"
    assert (await admin.http.get(url)).status_code == 200
    os.kill(own_valkey.pid, signal.SIGCONT)
    async with asyncio.timeout(30):
        while (await caller.http.get(url)).status_code != 200:
            await asyncio.sleep(0.05)


async def test_a_redis_without_its_data_revives_no_token(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, redis_of: RedisOf
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    caller = as_caller(api_of, gateway, await create_token(api_of(gateway), "looker"))
    assert (await caller.http.get("/v1/agents")).status_code == 200
    store = await redis_of(own_valkey)
    await store.submit("DEL", SERVICE_TOKENS)
    await until_status(caller, 401)


async def test_wrong_tokens_are_refused_and_garbage_in_redis_too(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, redis_of: RedisOf
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    text = await create_token(admin, "looker")
    for wrong in (text[:-1], text + "A", text[:-1] + ("A" if text[-1] != "A" else "B"), text.upper(), "fl_", "x"):
        assert (await as_caller(api_of, gateway, wrong).http.get("/v1/agents")).status_code in (401, 429)
    basic = api_of(gateway)
    basic.http.headers["authorization"] = f"Basic {text}"
    assert (await basic.http.get("/v1/agents")).status_code in (401, 429)
    store = await redis_of(own_valkey)
    await store.submit("HSET", SERVICE_TOKENS, "token:000000000000", "not json", "revision", "x")
    caller = as_caller(api_of, gateway, text)
    async with asyncio.timeout(10):
        while "the service token 000000000000 in Redis is not valid" not in gateway.log():
            await asyncio.sleep(0.05)
    assert (await caller.http.get("/v1/agents")).status_code == 200


async def test_what_others_write_to_the_tokens_harms_nobody_else(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, redis_of: RedisOf
) -> None:
    """One field that is not valid is left out: callers, lists, creations and the node itself go on."""
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    text = await create_token(admin, "looker")
    caller, id = as_caller(api_of, gateway, text), text.split("_")[1]
    store = await redis_of(own_valkey)
    good = json.loads(table(await store.submit("HGETALL", SERVICE_TOKENS))[f"token:{id}".encode()])
    changes: tuple[dict[str, object], ...] = (
        {"digest": "\u00e9"}, {"expires": 1 << 60}, {"expires": -(1 << 60)}, {"created": 1 << 60}, {"id": "f" * 12},
    )  # fmt: skip
    bad = [{**good, "id": f"{n:012x}", **change} for n, change in enumerate(changes)]
    fields: list[str | bytes | int] = [
        "used:x",
        "garbage",
        f"used:{id}",
        1 << 60,
        b"token:\xff",
        "{}",
        "token:five",
        "5",
    ]
    for n, one in enumerate(bad):
        fields += [f"token:{n:012x}", json.dumps(one)]
    before = len(gateway.log())
    await store.submit("HSET", SERVICE_TOKENS, *fields, "revision", b"\xfe")
    await until(lambda: gateway.log(before).count("in Redis is not valid, so it is refused") >= len(fields) // 2)
    assert (await caller.http.get("/v1/agents")).status_code == 200
    assert [one["id"] for one in (await admin.http.get("/v1/tokens")).json()["tokens"]] == [id]
    assert (await as_caller(api_of, gateway, await create_token(admin, "looker")).http.get("/v1/agents")).is_success
    assert (await as_caller(api_of, gateway, f"fl_{0:012x}_{'A' * 43}").http.get("/v1/agents")).status_code == 401
    assert (await admin.http.get(f"{gateway.admin}/readyz")).status_code == 200
    await admin.http.delete(f"/v1/tokens/{id}")
    await until_status(caller, 401)


async def test_a_token_that_no_administrator_creates_never_gets_more_roles(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    """Otherwise its creator would have what is bound to the name later."""
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin = api_of(gateway)
    keeper = as_caller(api_of, gateway, await create_token(admin, "keeper"))
    of_keeper = as_caller(api_of, gateway, await create_token(keeper, "looker"))
    of_admin = as_caller(api_of, gateway, await create_token(admin, "looker"))

    async def roles(caller: GatewayApi) -> list[str]:
        return list((await caller.http.get("/v1/auth/whoami")).json()["roles"])

    assert await roles(of_keeper) == await roles(of_admin) == ["look"]
    more = ROLES.replace("{tokens: [looker], roles: [look]}", "{tokens: [looker], roles: [look, all]}")
    write_roles(tmp_path / "roles.yaml", more)

    async def has_more() -> bool:
        return await roles(of_admin) == ["all", "look"]

    await until(has_more)
    assert await roles(of_keeper) == ["look"]


async def test_a_token_in_place_of_its_id_is_shown_nowhere(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    write_roles(tmp_path / "roles.yaml")
    folder = tmp_path / "audit"
    gateway = make_gateway(own_valkey.url, "--roles", str(tmp_path / "roles.yaml"), "--audit-log", str(folder))
    admin = api_of(gateway)
    text = await create_token(admin, "looker")
    looker = as_caller(api_of, gateway, await create_token(admin, "looker"))
    for wrong in (text, f"{text}x", text.split("_", 1)[1]):
        refused = await admin.http.delete(f"/v1/tokens/{wrong}")
        assert (refused.status_code, refused.json()["field"]) == (422, "token")
        denial = await looker.http.delete(f"/v1/tokens/{wrong}")
        assert denial.status_code == 403
        assert text.split("_", 2)[2] not in refused.text + denial.text
    gateway.stop()
    written = "".join(file.read_text() for file in folder.iterdir()) + gateway.log()
    assert "not the id of a token" in written
    assert text.split("_", 2)[2] not in written


async def test_a_body_that_arrives_after_the_revocation_does_nothing(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    """Head and token are checked first, and the body may take half a minute."""
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    token = await create_token(admin, "all")
    body = json.dumps({"agent": agent.agent, "method": "work"}).encode()
    host, _, port = gateway.api.removeprefix("http://").partition(":")
    head = (
        f"POST /v1/commands HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body[:1])
        await writer.drain()
        caller = as_caller(api_of, gateway, token)
        assert (await caller.http.get("/v1/agents")).status_code == 200
        assert (await admin.http.delete(f"/v1/tokens/{token.split('_')[1]}")).status_code == 204
        writer.write(body[1:])
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()
    assert (await admin.agent(agent.agent))["open_commands"] == []


async def test_two_credentials_in_one_request_are_refused(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    token = await create_token(api_of(gateway), "looker")
    async with plain_client(base_url=gateway.api) as http:
        twice = [("authorization", f"Bearer {token}"), ("authorization", f"Bearer {PLATFORM_TOKEN}")]
        for headers in (twice, twice[::-1], [twice[0]] * 2):
            answer = await http.get("/v1/agents", headers=headers)
            assert answer.status_code == 401
            assert "2 headers Authorization: expected one" in answer.json()["detail"]


async def test_labels_that_changed_since_they_were_checked_stay(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path,
    redis_of: RedisOf,
) -> None:  # fmt: skip
    """Nobody labels an agent that left his part of the fleet between the check and the change."""
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    admin, agent = api_of(gateway), await dial(gateway)
    await agent.greet()
    await admin.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "dev"}})
    directory = Directory(await redis_of(own_valkey))
    row = await directory.look_up(agent.agent)
    assert row is not None
    await admin.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "prod"}})
    assert isinstance(await directory.label(agent.agent, {"mine": "yes"}, row.labels), LabelsChanged)
    assert (await admin.agent(agent.agent))["labels"] == {"env": "prod"}
    assert await directory.label(agent.agent, {"mine": "yes"}, '{"env":"prod"}') == {"env": "prod", "mine": "yes"}


async def test_a_file_of_roles_with_an_error_stops_the_start(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, tmp_path: Path
) -> None:
    (gateway,) = started(make_gateway, own_valkey.url, tmp_path, "node-1")
    gateway.stop()
    (tmp_path / "roles.yaml").write_text("roles: []\n")
    before = len(gateway.log())
    try:
        gateway.start()
    except AssertionError:
        assert gateway.wait() == 2
        assert "roles.yaml:1: roles is not a mapping: expected names with a value each" in gateway.log(before)
    else:
        raise AssertionError("it has started")
