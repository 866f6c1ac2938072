"""`GET /v1/commands`: the commands that have not ended, as far as the caller may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import caller_of, write_roles
from support.gateway.scripted_agent import DialAgent


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("open-commands")
    write_roles(folder / "roles.yaml")
    process = GatewayProcess(folder, shared_valkey.url, ("--roles", str(folder / "roles.yaml")))
    process.start()
    yield process
    process.stop()


async def pages(api: GatewayApi, **query: str) -> list[dict[str, Any]]:
    """All commands of all pages, each once."""
    found: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(30):
        while True:
            answer = await api.http.get("/v1/commands", params=query)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found |= {one["id"]: one for one in page["commands"]}
            if page["cursor"] is None:
                return list(found.values())
            query["cursor"] = page["cursor"]


async def test_a_command_is_listed_until_it_ends(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> None:
    peer = await dial(gateway)
    await peer.greet()
    ids = [await api.start(peer.agent, method=method) for method in ("work", "work", "rest")]
    received = [await peer.command() for _ in ids]
    await peer.send(Ack(id=received[0].id))
    async with asyncio.timeout(20):
        while len(await pages(api, agent=peer.agent, state="running")) != 1:
            await asyncio.sleep(0.05)
    listed = await pages(api, agent=peer.agent)
    assert {found["id"] for found in listed} == set(ids)
    assert {one["state"] for one in listed} == {"running", "sent"}
    assert {one["targets"][0]["agent"] for one in listed} == {peer.agent}
    rest = await pages(api, agent=peer.agent, method="rest")
    assert [one["id"] for one in rest] == [ids[2]]
    assert set(ids) <= {one["id"] for one in await pages(api)}
    assert set(ids) <= {one["id"] for one in await pages(api, limit="1")}
    for command in received:
        await peer.send(*([] if command is received[0] else [Ack(id=command.id)]), End(id=command.id, total=0))
    for one in ids:
        await api.end(one)
    assert await pages(api, agent=peer.agent) == []
    assert not set(ids) & {one["id"] for one in await pages(api)}


async def test_a_caller_sees_its_own_commands_and_those_that_a_rule_allows(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    labelled = await api.http.patch(f"/v1/agents/{peer.agent}", json={"labels": {"env": "dev"}})
    assert labelled.status_code == 200
    deploy, other = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "looker")
    mine = (
        await deploy.http.post("/v1/commands", json={"agent": peer.agent, "method": "exec", "unchecked": True})
    ).json()["id"]
    theirs = await api.start(peer.agent, method="exec")
    for query in ({"agent": peer.agent}, {}):
        assert mine in {one["id"] for one in await pages(deploy, **query)}
        assert theirs not in {one["id"] for one in await pages(deploy, **query)}
        assert {mine, theirs} <= {one["id"] for one in await pages(api, **query)}
    assert (await other.http.get("/v1/commands")).status_code == 403
    watching = await pages(await caller_of(api_of, gateway, "watcher"))
    assert {mine, theirs} <= {one["id"] for one in watching}
    await api.http.patch(f"/v1/agents/{peer.agent}", json={"labels": {"env": "prod"}})
    async with asyncio.timeout(20):  # labels may be two seconds old
        while mine in {one["id"] for one in await pages(deploy)}:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=ok", "state"), ("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=64:0", "cursor"),
        ("cursor=1", "cursor"), ("cursor=a:b", "cursor"), ("cursor=0:99999999999999999999", "cursor"),
        ("agent=a%20b", "agent"),
    ],
)  # fmt: skip
async def test_a_wrong_query_names_its_parameter(api: GatewayApi, query: str, field: str) -> None:
    answer = await api.http.get(f"/v1/commands?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
