"""Schedules of a caller that wants to harm others: many, large, over a quota, or runs that never end."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from fairlead.fleet.contents.content_store import content_key, content_name
from fairlead.fleet.schedules.schedule_record import Schedule
from fairlead.fleet.schedules.schedules import SCHEDULES_LIMIT, Schedules
from fairlead.fleet.schema import SCHEDULES, SCHEDULES_DUE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, octets
from fairlead.wire.messages import Cmd

from support.fixtures import RedisOf
from support.gateway.identity_site import make_issuer_key
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.roles import write_roles
from support.gateway.tenant_fleets import ATTACKER, ROLES, VICTIM, TenantFleet, found_fleet
from support.waiting import until

RUNNER = "  runner: [{methods: ['*'], agents: '*'}]\napprovals:"
QUOTAS = (
    ROLES.replace("acme: {}", "acme: {run_concurrency: 1}").replace("approvals:", RUNNER)
    + "  - {tenant: acme, tokens: [boss, runner], roles: [runner]}\n"
)
NUMBERS = itertools.count()
RUN = {"method": "work", "selector": "*"}


@dataclass
class Tenants:
    attacker: TenantFleet
    victim: TenantFleet
    store: Pipeliner

    async def make_due(self, *ids: str, ago: float) -> None:
        """Have schedules be due since so many seconds, as if the clock had gone there."""
        due = int((time.time() - ago) * 1000)
        await self.store.submit("ZADD", SCHEDULES_DUE, *(one for id in ids for one in (due, id)))


@pytest.fixture
async def tenants(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> AsyncIterator[Tenants]:
    write_roles(tmp_path / "roles.yaml", QUOTAS)
    node = make_gateway(
        own_valkey.url,
        "--log-level",
        "debug",
        "--roles",
        str(tmp_path / "roles.yaml"),
        "--issuer-key",
        str(make_issuer_key(tmp_path)),
    )
    store = await redis_of(own_valkey)
    attacker, victim = [await found_fleet(tenant, node, store, api_of) for tenant in (ATTACKER, VICTIM)]
    yield Tenants(attacker, victim, store)
    await attacker.site.aclose()
    await victim.site.aclose()


async def create(fleet: TenantFleet, **more: object) -> httpx2.Response:
    body = {"name": f"one-{next(NUMBERS)}", "cron": "0 0 1 1 *", "run": RUN, **more}
    return await fleet.boss.http.post("/v1/schedules", json=body)


async def last_start(fleet: TenantFleet, id: str) -> Any:
    answer = await fleet.boss.http.get("/v1/schedules")
    return next(one["last"] for one in answer.json()["schedules"] if one["id"] == id)


async def test_schedules_of_a_tenant_over_its_quota_do_not_hold_up_those_of_others(tenants: Tenants) -> None:
    attacker, victim = tenants.attacker, tenants.victim
    agent = await attacker.link("web-1")
    await victim.link("web-1")
    endless = await attacker.boss.http.post("/v1/runs", json={**RUN, "concurrency": 1, "deadline": 600})
    assert endless.status_code == 202, endless.text
    await agent.expect(Cmd)
    refused = [(await create(attacker, run={**RUN, "concurrency": 1})).json()["id"] for _ in range(40)]
    good = (await create(victim)).json()["id"]
    await tenants.make_due(*refused, ago=20)
    await tenants.make_due(good, ago=1)
    await until(lambda: last_start(victim, good), 20)
    assert (await last_start(victim, good))["outcome"] == "started"
    assert await last_start(attacker, refused[0]) is None, "it is begun once the quota has room"


async def test_a_schedule_in_a_zone_that_no_node_knows_does_not_hold_up_others(tenants: Tenants) -> None:
    victim, store = tenants.victim, tenants.store
    await victim.link("web-1")
    bad, good = [(await create(victim)).json()["id"] for _ in range(2)]
    stored = msgspec.msgpack.decode(octets(await store.submit("HGET", SCHEDULES, bad)), type=Schedule)
    moved = msgspec.structs.replace(stored, zone="Mars/Olympus")  # as another node's database of zones may have it
    await store.submit("HSET", SCHEDULES, bad, msgspec.msgpack.encode(moved))
    for ago in (1, 2):
        await tenants.make_due(bad, ago=30)
        await tenants.make_due(good, ago=ago)
        before = await last_start(victim, good)
        await until(lambda: _differs(victim, good, before), 20)  # noqa: B023  # awaited here


async def _differs(fleet: TenantFleet, id: str, before: Any) -> bool:
    return bool(await last_start(fleet, id) != before)


async def test_one_tenant_does_not_use_up_all_schedules(tenants: Tenants) -> None:
    answers: Counter[int] = Counter()
    for _ in range(6):
        for answer in await asyncio.gather(*(create(tenants.attacker) for _ in range(50))):
            answers[answer.status_code] += 1
    assert answers[201] == SCHEDULES_LIMIT // 4, answers
    assert (await create(tenants.victim)).status_code == 201


async def test_a_schedule_has_a_small_payload_because_a_list_reads_all(tenants: Tenants) -> None:
    large = await create(tenants.attacker, run={**RUN, "payload": "x" * (8 << 10)})
    assert (large.status_code, large.json()["field"]) == (422, "run.payload"), large.text
    assert "content" in large.json()["detail"]
    small = await create(tenants.attacker, run={**RUN, "payload": "x" * 8_000})
    assert small.status_code == 201


async def test_runs_that_agents_join_do_not_add_up(tenants: Tenants) -> None:
    victim = tenants.victim
    await victim.link("web-1")
    forever = {**RUN, "late": True, "run_deadline": 7 * 86_400}
    id = (await create(victim, cron="* * * * *", run=forever)).json()["id"]
    await tenants.make_due(id, ago=1)
    await until(lambda: last_start(victim, id), 20)
    run = (await victim.boss.http.get(f"/v1/runs/{(await last_start(victim, id))['run']}")).json()
    lasts = datetime.fromisoformat(run["expires"]) - datetime.fromisoformat(run["created"])
    assert lasts <= timedelta(seconds=61), "another one begins then"


async def test_a_name_is_one_schedule_of_its_caller(tenants: Tenants) -> None:
    """Whoever repeats a post whose answer was lost would have everything done twice each night."""
    answers = await asyncio.gather(*(create(tenants.attacker, name="nightly") for _ in range(10)))
    (made,) = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    for refused in (answer for answer in answers if answer.status_code != 201):
        assert (refused.status_code, refused.json()["field"]) == (422, "name"), refused.text
        assert made in refused.json()["detail"]
    assert (await create(tenants.victim, name="nightly")).status_code == 201, "another tenant has names of its own"
    listed = (await tenants.attacker.boss.http.get("/v1/schedules")).json()["schedules"]
    assert [one["id"] for one in listed] == [made]
    assert (await tenants.attacker.boss.http.delete(f"/v1/schedules/{made}")).status_code == 204
    assert (await create(tenants.attacker, name="nightly")).status_code == 201, "the name is free again"


async def test_a_list_reads_the_schedules_of_its_own_tenant_alone(tenants: Tenants) -> None:
    """One that cannot be read, such as one of a newer version, does not concern another tenant."""
    mine, other = [(await create(one)).json()["id"] for one in (tenants.attacker, tenants.victim)]
    await tenants.store.submit("HSET", SCHEDULES, other, b"\xc1")
    listed = await tenants.attacker.boss.http.get("/v1/schedules")
    assert (listed.status_code, [one["id"] for one in listed.json()["schedules"]]) == (200, [mine])


async def test_who_removes_a_schedule_twice_does_not_hide_the_next_one_of_its_name(tenants: Tenants) -> None:
    """What is in no list is not counted either, and a tenant would have more schedules than it may."""
    made = (await create(tenants.attacker, name="nightly")).json()["id"]
    found = await Schedules(tenants.store).read(made)
    assert found is not None  # as another request has read it, too, that is to remove it
    assert (await tenants.attacker.boss.http.delete(f"/v1/schedules/{made}")).status_code == 204
    again = (await create(tenants.attacker, name="nightly")).json()["id"]
    await Schedules(tenants.store).remove(found)
    listed = (await tenants.attacker.boss.http.get("/v1/schedules")).json()["schedules"]
    assert [one["id"] for one in listed] == [again]
    assert (await create(tenants.attacker, name="nightly")).status_code == 422, "the name is taken"


async def test_a_schedule_that_cannot_be_read_does_not_end_the_keeper_of_all_others(
    tenants: Tenants, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    """Such as one of a newer version, after a rollback: every node would ask to be restarted, again and again."""
    data = b"of the schedule"
    digest = hashlib.sha256(data).hexdigest()
    assert (await tenants.victim.boss.http.put(f"/v1/contents/{digest}", content=data)).status_code == 200
    assert (await create(tenants.victim, run={**RUN, "content": digest})).status_code == 201
    key = content_key(content_name(VICTIM, digest))
    broken = (await create(tenants.attacker)).json()["id"]
    await tenants.store.submit("HSET", SCHEDULES, broken, b"\xc1")
    await tenants.store.submit("PEXPIRE", key, 600_000)
    node = make_gateway(own_valkey.url, "--log-level", "debug", name="node-2")

    async def renewed() -> bool:
        return integer(await tenants.store.submit("PTTL", key)) > 600_000

    await until(renewed)
    await tenants.make_due(broken, ago=1)
    failed = f"beginning schedule {broken} failed"

    def lines(level: str) -> list[str]:
        nodes = (node, tenants.attacker.site.node)
        return [line for one in nodes for line in one.log().splitlines() if failed in line and f" {level} " in line]

    await until(lambda: len(lines("DEBUG")) >= 2, 30)
    assert 1 <= len(lines("ERROR")) <= 2, "each node says it once, and tries again all the time"
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"{node.admin}/readyz")).text == "ok\n"


async def test_a_schedule_that_cannot_be_read_is_removed_by_its_tenant_alone(tenants: Tenants) -> None:
    mine = (await create(tenants.attacker, name="nightly")).json()["id"]
    theirs = (await create(tenants.victim)).json()["id"]
    for id in (mine, theirs):
        await tenants.store.submit("HSET", SCHEDULES, id, b"\xc1")
    refused = await tenants.attacker.boss.http.delete(f"/v1/schedules/{theirs}")
    assert (refused.status_code, refused.json()["code"]) == (404, "command_unknown"), refused.text
    http = tenants.attacker.boss.http
    made = await http.post("/v1/tokens", json={"name": "runner"})
    assert made.status_code == 201, made.text
    runner = {"authorization": f"Bearer {made.json()['token']}"}
    answers = [await http.delete(f"/v1/schedules/{mine}", headers=headers) for headers in (runner, {}, {})]
    assert [one.status_code for one in answers] == [403, 204, 404], [one.text for one in answers]
    assert await tenants.store.submit("HKEYS", SCHEDULES) == [theirs.encode()]
    assert await tenants.store.submit("ZRANGE", SCHEDULES_DUE, 0, -1) == [theirs.encode()]
    assert (await create(tenants.attacker, name="nightly")).status_code == 201, "the name is free again"
