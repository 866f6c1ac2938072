"""Tenants on one gateway: the same id twice, quotas that all nodes share, and what an administrator sees of them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.audit.records import LINKS_CLOSED
from fairlead.audit.verification import read_lines
from fairlead.fleet.runs.keys import OPEN_RUNS
from fairlead.fleet.tokens.enrolment_tokens import EnrolmentTokens
from fairlead.fleet.tokens.service_tokens import ServiceToken, ServiceTokens
from fairlead.fleet.tokens.tenant_share import token_share
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Cmd, End, Event

from support.fixtures import RedisOf
from support.gateway.enrolled_agent import until_state
from support.gateway.identity_site import FAR, make_issuer_key, new_key, still_linked
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import write_roles
from support.gateway.tenant_fleets import HEADER, ROLES, TenantFleet, found_fleet
from support.waiting import until

QUOTAS = ROLES.replace(
    "acme: {}", "acme: {agents: 2, open_commands: 2, command_rate: 50, run_concurrency: 3, events_bytes: 1000}"
)


class TwoTenants:
    def __init__(
        self, nodes: list[GatewayProcess], valkey: EmbeddedValkey, acme: TenantFleet, globex: TenantFleet,
        platform: GatewayApi,
    ) -> None:  # fmt: skip
        self.nodes, self.valkey, self.acme, self.globex, self.platform = nodes, valkey, acme, globex, platform


@pytest.fixture
async def two(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> AsyncIterator[TwoTenants]:
    write_roles(tmp_path / "roles.yaml", QUOTAS)
    flags = (
        "--roles", str(tmp_path / "roles.yaml"), "--issuer-key", str(make_issuer_key(tmp_path)), "--audit-log",
        str(tmp_path / "audit"),
    )  # fmt: skip
    nodes = [make_gateway(own_valkey.url, *flags, name=name) for name in ("node-1", "node-2")]
    store = await redis_of(own_valkey)
    acme, globex = [await found_fleet(tenant, nodes[0], store, api_of) for tenant in ("acme", "globex")]
    yield TwoTenants(nodes, own_valkey, acme, globex, api_of(nodes[0]))
    await acme.site.aclose()
    await globex.site.aclose()


async def refused(api: GatewayApi, method: str = "work", agent: str = "web-1") -> dict[str, object]:
    answer = await api.post({"agent": agent, "method": method})
    assert answer.status_code == 429, answer.text
    assert answer.headers["retry-after"]
    assert answer.json()["code"] == "quota_exceeded"
    return dict(answer.json())


async def test_the_same_id_is_another_agent_in_each_tenant(two: TwoTenants) -> None:
    a, b = await two.acme.link("web-1"), await two.globex.link("web-1")
    shared = await two.platform.http.get("/v1/agents")
    assert shared.json()["agents"] == []  # the default tenant
    for fleet, peer in ((two.acme, a), (two.globex, b)):
        command = await fleet.boss.start("web-1", "work")
        cmd = await peer.expect(Cmd)
        assert cmd.id == command
        await peer.send(Ack(id=command), End(id=command, total=0, payload=f'"{fleet.tenant}"'.encode()))
        end = await fleet.boss.end(command)
        assert (end["agent"], end["payload"]) == ("web-1", fleet.tenant)
        listed = (await fleet.boss.http.get("/v1/agents")).json()["agents"]
        assert [one["id"] for one in listed] == ["web-1"]
        as_administrator = await two.platform.http.get("/v1/agents/web-1", headers={HEADER: fleet.tenant})
        assert as_administrator.json()["id"] == "web-1"
    twice = [("authorization", two.platform.http.headers["authorization"]), (HEADER, "acme"), (HEADER, "globex")]
    answer = await two.platform.http.get("/v1/agents/web-1", headers=twice)
    assert (answer.status_code, answer.json()["field"]) == (422, "Fairlead-Tenant"), (
        "a proxy may have set the second one"
    )
    await still_linked(a)
    await still_linked(b)


async def test_the_end_of_a_command_names_its_agent_without_the_tenant(two: TwoTenants) -> None:
    agent = await two.acme.link("web-1")
    await agent.socket.close()
    boss = two.acme.boss
    await until_state(boss, "web-1", "away")
    answer = await boss.post({"agent": "web-1", "method": "work", "on_offline": {"queue": 1}})
    end = await boss.end(answer.json()["id"])
    assert end["error"]["code"] == "agent_offline"
    assert end["error"]["message"].startswith("agent 'web-1' did not come back")


async def test_open_commands_and_their_rate_are_limited_for_all_nodes_together(
    two: TwoTenants, api_of: MakeGatewayApi
) -> None:
    peer = await two.acme.link("web-1")
    await two.globex.link("web-1")
    other_node = api_of(two.nodes[1])
    other_node.http.headers["authorization"] = two.acme.boss.http.headers["authorization"]

    async def known_there() -> bool:
        return (await other_node.http.get("/v1/agents/web-1")).status_code == 200

    await until(known_there)
    first, second = await two.acme.boss.start("web-1"), await other_node.start("web-1")
    for api in (two.acme.boss, other_node):
        problem = await refused(api)
        assert (problem["quota"], problem["limit"]) == ("open_commands", 2)
        assert problem["detail"] == (
            "this tenant has 2 open commands, and its quota is 2: wait for some to end, or cancel them"
        )
    await two.globex.boss.start("web-1")  # nobody else is concerned
    for command in (first, second):
        assert (await peer.expect(Cmd)).id in (first, second)
        await peer.send(Ack(id=command), End(id=command, total=0))

    async def room() -> bool:
        return (await two.acme.boss.post({"agent": "web-1", "method": "work", "deadline": 600})).status_code == 202

    await until(room)
    name = 'fairlead_tenant_refusals_total{quota="open_commands",tenant="acme"}'
    assert sum([await metric(node, re.escape(name)) for node in two.nodes]) >= 2
    assert await metric(two.nodes[0], re.escape('fairlead_tenant_links{tenant="acme"}')) == 1


async def test_a_tenant_that_posts_too_fast_is_told_when_to_try_again(two: TwoTenants) -> None:
    """Commands for an unknown agent are refused as such, and count for the rate, but not as open."""
    statuses = [
        (await two.acme.boss.post({"agent": "nobody", "method": "work"})).status_code for _ in range(60)
    ]  # fmt: skip
    assert set(statuses) <= {404, 429}
    write_roles(two.nodes[0].folder / "roles.yaml", QUOTAS.replace("command_rate: 50", "command_rate: 1"))

    async def limited() -> bool:
        return (await two.acme.boss.post({"agent": "nobody", "method": "work"})).status_code == 429

    await until(limited)


async def test_runs_and_agents_are_limited(two: TwoTenants) -> None:
    for agent in ("web-1", "web-2"):
        await two.acme.link(agent)
    third = await two.acme.enrol("web-3")
    assert third.status_code == 429
    assert third.json()["detail"].startswith("this tenant has 2 agents, and its quota is 2: delete agents")
    assert (await two.acme.enrol("web-2")).status_code == 201  # once more with the same key
    await two.globex.link("web-3")
    run = {"agents": ["web-1", "web-2"], "method": "work", "deadline": 600}
    first = await two.acme.boss.http.post("/v1/runs", json=run)
    assert first.status_code == 202, first.text
    second = await two.acme.boss.http.post("/v1/runs", json=run)
    assert (second.status_code, second.json()["quota"], second.json()["limit"]) == (429, "run_concurrency", 3)
    listed = (await two.platform.http.get("/v1/tenants")).json()["tenants"]
    acme = next(one for one in listed if one["name"] == "acme")
    assert (acme["agents"], acme["open_commands"], acme["run_concurrency"]) == (2, 0, 2)
    assert [one["name"] for one in listed] == ["default", "acme", "globex"]
    await two.acme.boss.http.delete(f"/v1/runs/{first.json()['id']}")
    for peer in two.acme.agents.values():
        cmd = await peer.expect(Cmd)
        await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0, state="cancelled"))

    async def room() -> bool:
        return (await two.acme.boss.http.post("/v1/runs", json=run)).status_code == 202

    await until(room)


async def test_a_run_that_has_ended_takes_nothing_of_the_quota_any_more(two: TwoTenants, redis_of: RedisOf) -> None:
    """Neither if its post is repeated, nor if its owner died before it could give the place back."""
    peer = await two.acme.link("web-1")
    body, key = {"agents": ["web-1"], "method": "work", "deadline": 600}, {"idempotency-key": "once"}
    run = (await two.acme.boss.http.post("/v1/runs", json=body, headers=key)).json()["id"]
    cmd = await peer.expect(Cmd)
    await peer.send(Ack(id=cmd.id), End(id=cmd.id, total=0))

    async def used() -> int:
        listed = (await two.platform.http.get("/v1/tenants")).json()["tenants"]
        return int(next(one for one in listed if one["name"] == "acme")["run_concurrency"])

    async def nothing_used() -> bool:
        return await used() == 0

    await until(nothing_used)
    again = await two.acme.boss.http.post("/v1/runs", json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (202, run)
    await until(nothing_used)
    store = await redis_of(two.valkey)
    await store.submit("HSET", "fl1:tenant_use:{acme}", f"run:{run}", "1 till 4102444800000")
    assert await used() == 1
    await store.submit("ZADD", OPEN_RUNS, 0, run)
    await until(nothing_used)


async def test_events_of_one_tenant_push_out_none_of_another(two: TwoTenants) -> None:
    quiet, loud = await two.globex.link("web-1"), await two.acme.link("web-1")
    await quiet.send(Event(id="kept", type="quiet"))
    await loud.send(*(Event(id=f"loud-{n}", type="loud", payload=b"1" * 100) for n in range(40)))

    async def stored() -> bool:
        return "loud-39" in (await two.acme.boss.http.get("/v1/events")).text

    await until(stored)
    kept = (await two.acme.boss.http.get("/v1/events")).text
    assert 1 <= kept.count('"id":"loud-') < 10  # its quota is 1,000 bytes
    assert '"kept"' in (await two.globex.boss.http.get("/v1/events")).text


async def test_an_agent_of_a_tenant_that_was_removed_is_refused(two: TwoTenants) -> None:
    await two.globex.link("web-1")
    write_roles(two.nodes[0].folder / "roles.yaml", ROLES.replace("  globex: {}\n", "").replace("tenant: globex, ", ""))
    key = new_key()

    async def gone() -> bool:
        answer = await two.globex.site.enrol("web-9", key, text)
        return answer.status_code == 401 and "this gateway has no tenant globex" in answer.text

    _, text = await two.globex.enrolment_token()
    await until(gone)
    assert (await two.globex.boss.http.get("/v1/agents")).status_code == 403


async def test_links_and_streams_of_a_tenant_that_was_removed_are_closed(two: TwoTenants, tmp_path: Path) -> None:
    """Within five seconds; those of the other tenant stay."""
    gone, stays = await two.globex.link("web-1"), await two.acme.link("web-1")
    command = await two.globex.boss.start("web-1", deadline=600)
    header = {HEADER: "globex"}
    streams = [
        two.globex.boss.http.stream("GET", f"/v1/commands/{command}/results?follow=true"),
        two.platform.http.stream("GET", f"/v1/commands/{command}/results?follow=true", headers=header),
        two.globex.boss.http.stream("GET", "/v1/events?follow=true"),
        two.platform.http.stream("GET", "/v1/events?follow=true", headers=header),
    ]

    async def last_line(opening: Any) -> dict[str, Any]:
        async with opening as stream:
            assert stream.status_code == 200
            reading.append(opening)
            return dict(json.loads([line async for line in stream.aiter_lines() if line][-1]))

    reading: list[Any] = []
    followed = [asyncio.create_task(last_line(one)) for one in streams]
    await until(lambda: len(reading) == len(streams))
    write_roles(tmp_path / "roles.yaml", QUOTAS.replace("  globex: {}\n", "").replace("tenant: globex, ", ""))
    async with asyncio.timeout(5):
        assert await gone.close_code() == CloseCode.DISCONNECTED
        ends = await asyncio.gather(*followed)
    assert gone.socket.close_reason == "the tenant of this agent was removed from the file of roles"
    assert [end["error"]["code"] for end in ends] == ["permission_denied"] * 4
    await still_linked(stays)
    (line,) = [one for one in read_lines(tmp_path / "audit") if one.action == LINKS_CLOSED]
    assert (line.reason, line.count, line.tenant) == (gone.socket.close_reason, 1, "globex")
    assert sum([await metric(node, "fairlead_untrusted_links_total") for node in two.nodes]) == 1


async def test_one_tenant_does_not_use_up_the_tokens_of_the_others(
    two: TwoTenants, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    """Three tenants share a thousand of each kind."""
    store = await redis_of(own_valkey)
    service, enrolment, share = ServiceTokens(store), EnrolmentTokens(store), token_share(3)
    for n in range(share - 1):  # beside the one of `boss`
        token = ServiceToken(f"{n:012x}", "boss", "0" * 64, 1, FAR, "test", tenant="acme")
        assert await service.add(token, str(n), 1, share)
    for n in range(share):
        await enrolment.add(f"{n:012x}", b"{}", FAR, "acme")
    for path, body, kind in (
        ("/v1/tokens", {"name": "boss"}, "service"),
        ("/v1/enrolment-tokens", {"agents": "*"}, "enrolment"),
    ):
        full = await two.acme.boss.http.post(path, json=body)
        assert full.status_code == 503, full.text
        assert f"there are 333 {kind} tokens of the tenant acme, the maximum" in full.json()["detail"]
        assert (await two.globex.boss.http.post(path, json=body)).status_code == 201
        assert (await two.platform.http.post(path, json=body)).status_code == 201


def test_each_tenant_has_a_share_of_the_tokens() -> None:
    assert [token_share(tenants) for tenants in (0, 1, 2, 3, 50, 257)] == [1000, 1000, 500, 333, 20, 20]


async def test_the_command_line_names_a_tenant_and_lists_them(two: TwoTenants, tmp_path: Path) -> None:
    await two.acme.link("web-1")

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fairlead", *words, "--api", two.nodes[0].api]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    listed = cli("tenants", "ls")
    assert [line.split()[:3] for line in listed.stdout.splitlines()] == [
        ["TENANT", "AGENTS", "OPEN"], ["default", "0", "-"], ["acme", "1/2", "0/2"], ["globex", "0", "-"],
    ], listed.stderr  # fmt: skip
    assert "web-1" in cli("agents", "ls", "--tenant", "acme").stdout
    assert "web-1" not in cli("agents", "ls").stdout
    assert "tenant    acme" in cli("auth", "whoami", "--tenant", "acme").stdout
    unknown = cli("agents", "ls", "--tenant", "nowhere")
    assert unknown.returncode == 2
    assert "expected one of default, acme, globex" in unknown.stderr
