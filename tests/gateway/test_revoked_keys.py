"""Keys of agents that are revoked, and issuers' keys that are replaced, at real nodes: a revoked key loses its links on
every node, and opens none after a restart of the nodes or a loss of Redis."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets

from fairlead.identity.agent_key import AgentKey, thumbprint
from fairlead.identity.proof import prove, renewal_statement
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, End

from support.fixtures import RedisOf
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import ScriptedAgent
from support.waiting import until

AGENTS = 12


class TwoNodes:
    """Two nodes with the same issuer's key, the second one with two workers."""

    def __init__(self, sites: tuple[IdentitySite, IdentitySite], api: GatewayApi) -> None:
        self.sites, self.api = sites, api

    async def linked(self, agent: str, key: AgentKey, node: int) -> tuple[ScriptedAgent, str]:
        credential = await self.sites[node].credential(agent, key)
        return await self.sites[node].link(agent, credential, key), credential

    async def revoke(self, agent: str) -> str:
        answer = await self.api.http.post(f"/v1/agents/{agent}/key/revocation")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["key"])

    async def release(self, agent: str) -> None:
        assert (await self.api.http.delete(f"/v1/agents/{agent}/key")).status_code == 204

    async def refused_everywhere(self, agent: str, credential: str) -> None:
        for site in self.sites:
            await until(lambda site=site: refused(site, agent, credential))  # type: ignore[misc]


async def refused(site: IdentitySite, agent: str, credential: str) -> bool:
    """Whether the node refuses to open a link with the credential."""
    try:
        await site.dial(agent, credential)
    except websockets.InvalidStatus as e:
        return e.response.status_code == 401 and b"revoked" in (e.response.body or b"")
    return False


@pytest.fixture
async def nodes(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> AsyncIterator[TwoNodes]:
    key = str(make_issuer_key(tmp_path))
    first = make_gateway(own_valkey.url, "--issuer-key", key)
    second = make_gateway(own_valkey.url, "--issuer-key", key, "--workers", "2", name="node-2")
    store = await redis_of(own_valkey)
    made = TwoNodes((IdentitySite(first, store), IdentitySite(second, store)), api_of(first))
    yield made
    for site in made.sites:
        await site.aclose()


async def test_a_revoked_key_loses_its_links_on_every_node(nodes: TwoNodes) -> None:
    """Every second agent is revoked while all run a command; the others stay and finish."""
    keys = [new_key() for _ in range(AGENTS)]
    links = [await nodes.linked(f"web-{n}", key, n % 2) for n, key in enumerate(keys)]
    commands = [await nodes.api.start(f"web-{n}") for n in range(AGENTS)]
    for agent, _ in links:
        await agent.command()
    doomed = [n for n in range(AGENTS) if n % 4 < 2]
    shown = [await nodes.revoke(f"web-{n}") for n in doomed]
    assert shown == [thumbprint(keys[n].public) for n in doomed]
    codes = await asyncio.gather(*(links[n][0].close_code() for n in doomed))
    assert set(codes) == {CloseCode.REVOKED}
    for n in doomed:
        await nodes.refused_everywhere(f"web-{n}", links[n][1])
    for n in sorted(set(range(AGENTS)) - set(doomed)):
        agent = links[n][0]
        await still_linked(agent)
        await agent.send(Ack(id=commands[n], state="accepted"))
        await agent.send_output(commands[n], 0, "done")
        await agent.send(End(id=commands[n], state="ok", total=1))
        assert await nodes.api.output(commands[n]) == "done"


async def test_a_revoked_key_neither_renews_nor_enrols_and_its_id_waits_for_release(nodes: TwoNodes) -> None:
    old, new = new_key(), new_key()
    agent, credential = await nodes.linked("web-1", old, 1)
    await nodes.revoke("web-1")
    assert await agent.close_code() == CloseCode.REVOKED
    proof = prove(old, renewal_statement("web-1", credential))
    for site in nodes.sites:
        renewal = await site.http.post("/v1/renewals", json={"credential": credential, "proof": proof})
        assert (renewal.status_code, "was revoked" in renewal.text) == (401, True)
        for key in (old, new):
            enrolment = await site.enrol("web-1", key)
            assert (enrolment.status_code, "was revoked" in enrolment.text) == (401, True)
    await nodes.release("web-1")
    again, _ = await nodes.linked("web-1", new, 0)
    await nodes.refused_everywhere("web-1", credential)
    await still_linked(again)


async def test_a_key_can_be_revoked_twice_and_an_id_without_a_key_not_at_all(nodes: TwoNodes) -> None:
    await nodes.linked("web-1", key := new_key(), 0)
    assert await nodes.revoke("web-1") == await nodes.revoke("web-1") == thumbprint(key.public)
    unknown = await nodes.api.http.post("/v1/agents/web-2/key/revocation")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")


async def test_a_revocation_survives_a_restart_of_the_nodes(nodes: TwoNodes) -> None:
    _, credential = await nodes.linked("web-1", new_key(), 0)
    await nodes.revoke("web-1")
    for site in nodes.sites:
        site.node.stop()
    for site in nodes.sites:
        site.node.start()
    await nodes.refused_everywhere("web-1", credential)


async def test_nodes_write_back_what_redis_has_lost(nodes: TwoNodes) -> None:
    """Redis is emptied, and a link of the revoked key does not come back. A node that starts afterwards knows it."""
    _, credential = await nodes.linked("web-1", new_key(), 0)
    await nodes.revoke("web-1")
    await nodes.refused_everywhere("web-1", credential)
    store = nodes.sites[0].store
    await store.submit("FLUSHALL")

    async def written() -> bool:
        return integer(await store.submit("ZCARD", "fl1:revoked_keys")) == 1

    await until(written)
    await nodes.refused_everywhere("web-1", credential)
    nodes.sites[1].node.stop()
    nodes.sites[1].node.start()
    await nodes.refused_everywhere("web-1", credential)


# -- the issuer's keys ---------------------------------------------------------------------------------


def replace(file: Path, text: bytes) -> None:
    """Replace a file at once, as a deployment does."""
    new = file.with_suffix(".new")
    new.write_bytes(text)
    os.replace(new, file)


async def signs_otherwise(site: IdentitySite, key: AgentKey, header: str) -> bool:
    """Whether a new credential is signed with another key than that with the credential's `header` is."""
    return (await site.credential("probe", key)).split(".")[0] != header


async def is_accepted(site: IdentitySite, credential: str) -> bool:
    try:
        await site.dial("web-1", credential)
    except websockets.InvalidStatus as e:
        return e.response.status_code != 401
    return True


async def test_one_key_of_the_issuer_replaces_another_while_links_stay(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf
) -> None:
    file = make_issuer_key(tmp_path)
    (tmp_path / "other").mkdir()
    old, new = file.read_bytes(), make_issuer_key(tmp_path / "other").read_bytes()
    node = make_gateway(own_valkey.url, "--issuer-key", str(file))
    site = IdentitySite(node, await redis_of(own_valkey))
    key, probe = new_key(), new_key()
    first = await site.credential("web-1", key)
    agent = await site.link("web-1", first, key)
    replace(file, new + old)
    await until(lambda: signs_otherwise(site, probe, first.split(".")[0]))
    assert await is_accepted(site, first)
    proof = prove(key, renewal_statement("web-1", first))
    renewed = await site.http.post("/v1/renewals", json={"credential": first, "proof": proof})
    second = str(renewed.json()["credential"])
    replace(file, new)

    async def first_refused() -> bool:
        return not await is_accepted(site, first)

    await until(first_refused)
    assert await is_accepted(site, second)
    await still_linked(agent)
    await unusable_file_changes_nothing(site, file, second)
    await site.aclose()


async def unusable_file_changes_nothing(site: IdentitySite, file: Path, credential: str) -> None:
    node: GatewayProcess = site.node
    before = len(node.log())
    replace(file, b"no key")
    await until(lambda: "the keys stay as they were" in node.log(before))
    assert await is_accepted(site, credential)
