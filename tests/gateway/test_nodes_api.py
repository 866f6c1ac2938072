"""`GET /v1/nodes`: the nodes of a fleet while they serve, drain, stop and are killed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.roles import caller_of, denied, write_roles
from support.gateway.scripted_agent import DialAgent


async def nodes(api: GatewayApi, **query: str) -> dict[str, dict[str, Any]]:
    answer = await api.http.get("/v1/nodes", params=query)
    assert answer.status_code == 200, answer.text
    found = answer.json()["nodes"]
    assert [one["name"] for one in found] == sorted(one["name"] for one in found)
    return {one["name"]: one for one in found}


async def until_state(api: GatewayApi, node: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(40):
        while (one := (await nodes(api)).get(node)) is None or one["state"] != state:
            await asyncio.sleep(0.1)
    return one


async def test_each_node_is_listed_with_what_it_does(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    first, second, third = (make_gateway(own_valkey.url, "--node", name) for name in ("a", "b", "c"))
    api = api_of(first)
    for _ in range(3):
        await (await dial(second)).greet()
    async with asyncio.timeout(20):
        while (found := await nodes(api))["b"]["links"] != 3:
            await asyncio.sleep(0.1)
    assert {name: one["state"] for name, one in found.items()} == {"a": "serving", "b": "serving", "c": "serving"}
    b = found["b"]
    assert (b["accepted"], b["refused"], b["commands"], b["excluded_by"]) == (3, 0, 0, None)
    assert 0 <= b["cpu"] <= 1
    assert b["capacity"] > 3
    assert b["since"] <= b["heartbeat"]
    second.signal(signal.SIGKILL)
    third.stop()
    assert (await until_state(api, "c", "stopped"))["links"] == 0
    await until_state(api, "b", "lost")
    assert list(await nodes(api, state="lost")) == ["b"]
    assert list(await nodes(api, state="serving")) == ["a"]
    bad = await api.http.get("/v1/nodes", params={"state": "asleep"})
    assert (bad.status_code, bad.json()["field"]) == (422, "state")


async def test_only_a_role_with_the_verb_lists_nodes(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, tmp_path: Any
) -> None:
    roles = tmp_path / "roles.yaml"
    write_roles(
        roles,
        "roles:\n  everything-on-agents:\n    - {methods: ['*'], verbs: ['*'], agents: '*'}\n"
        "  operations:\n    - gateway: [nodes]\n"
        "bindings:\n  - {tokens: [agents-only], roles: [everything-on-agents]}\n"
        "  - {tokens: [sre], roles: [operations]}\n",
    )
    gateway = make_gateway(own_valkey.url, "--roles", str(roles))
    other = await caller_of(api_of, gateway, "agents-only")
    assert "may not use verb nodes" in denied(await other.http.get("/v1/nodes"))
    sre = await caller_of(api_of, gateway, "sre")
    assert len(await nodes(sre)) == 1


@pytest.mark.parametrize("query", ["limit=5", "state=lost&state=lost"])
async def test_a_query_that_it_does_not_have_is_refused(api: GatewayApi, query: str) -> None:
    assert (await api.http.get(f"/v1/nodes?{query}")).status_code == 422
