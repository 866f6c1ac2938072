"""Runs of a tenant that wants to keep others from having any: it takes as many places of a node as it can get."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.identity_site import make_issuer_key
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.roles import write_roles
from support.gateway.tenant_fleets import ATTACKER, ROLES, VICTIM, TenantFleet, found_fleet

ENDLESS = {"method": "work", "selector": "label.no=agent", "late": True, "concurrency": 1, "run_deadline": 7 * 86_400}
"""It needs no agent, and counts as little as possible for a quota."""
ASKED = 130
"""More than a node has places for runs, or for readers of them."""


@dataclass
class Tenants:
    attacker: TenantFleet
    victim: TenantFleet


@pytest.fixture
async def tenants(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> AsyncIterator[Tenants]:
    write_roles(tmp_path / "roles.yaml", ROLES)
    node = make_gateway(
        own_valkey.url, "--roles", str(tmp_path / "roles.yaml"), "--issuer-key", str(make_issuer_key(tmp_path))
    )
    store = await redis_of(own_valkey)
    attacker, victim = [await found_fleet(tenant, node, store, api_of) for tenant in (ATTACKER, VICTIM)]
    yield Tenants(attacker, victim)
    await attacker.site.aclose()
    await victim.site.aclose()


async def begin(api: GatewayApi) -> str:
    answer = await api.http.post("/v1/runs", json=ENDLESS)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def test_one_tenant_does_not_take_all_places_for_runs(tenants: Tenants) -> None:
    answers: Counter[int] = Counter()
    for _ in range(2):  # many at once: what has not begun yet counts, too
        posts = [tenants.attacker.boss.http.post("/v1/runs", json=ENDLESS) for _ in range(ASKED // 2)]
        answers.update([answer.status_code for answer in await asyncio.gather(*posts)])
    assert set(answers) == {202, 503}, "it takes what is free, and no more than its share"
    for _ in range(5):
        await begin(tenants.victim.boss)


async def test_one_tenant_does_not_take_all_places_for_readers_of_runs(tenants: Tenants) -> None:
    theirs, ours = await begin(tenants.attacker.boss), await begin(tenants.victim.boss)
    path, following = f"/v1/runs/{theirs}/results", {"follow": "true", "progress": "true"}
    async with AsyncExitStack() as stack:

        async def is_read() -> bool:
            stream = tenants.attacker.boss.http.stream("GET", path, params=following)
            answer = await stack.enter_async_context(stream)
            return answer.status_code == 200 and "error" not in await anext(answer.aiter_lines())

        for _ in range(2):
            answers = await asyncio.gather(*(is_read() for _ in range(ASKED // 2)))
        assert not all(answers)
        stream = tenants.victim.boss.http.stream("GET", f"/v1/runs/{ours}/results", params=following)
        assert (await stack.enter_async_context(stream)).status_code == 200
