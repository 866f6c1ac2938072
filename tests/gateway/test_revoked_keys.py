"""Keys of agents that are revoked, and issuers' keys that are replaced, at real nodes: a revoked key loses its links on
every node, and opens none after a restart of the nodes or a loss of Redis."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import websockets

from fairlead.audit.verification import read_lines
from fairlead.errors import ConfigError, Unauthorized, Unavailable
from fairlead.fleet.tokens.revoked_keys import KEPT_MS, KEYS_LIMIT, RevokedKey
from fairlead.identity.agent_key import AgentKey, seed_of_pem, thumbprint
from fairlead.identity.credential import CredentialIssuer
from fairlead.identity.proof import prove, renewal_statement
from fairlead.routing.agents.cloned_agents import HELD_SHARE
from fairlead.routing.agents.issuer_key import IssuerKeyFile
from fairlead.routing.agents.key_revocations import OVERLAP_MS, KeyRevocations
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, End

from support.fixtures import RedisOf
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN, ScriptedAgent
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


async def test_a_token_is_revoked_with_all_keys_that_it_has_enrolled(nodes: TwoNodes) -> None:
    """Agents of a leaked token lose their links on both nodes. Those of another token stay, and so does an agent whose
    id was released and enrolled anew."""
    made = [await nodes.api.http.post("/v1/enrolment-tokens", json={"agents": "*", "uses": 9}) for _ in range(2)]
    leaked, other = (one.json() for one in made)
    keys = {f"web-{n}": new_key() for n in range(6)}
    links = {}
    for n, (agent, key) in enumerate(keys.items()):
        token = (leaked if n < 4 else other)["token"]
        answer = await nodes.sites[n % 2].enrol(agent, key, token)
        assert answer.status_code == 201, answer.text
        links[agent] = await nodes.sites[n % 2].link(agent, answer.json()["credential"], key)
    moved = new_key()
    answer = await nodes.sites[0].enrol("moved", new_key(), leaked["token"])
    assert answer.status_code == 201, answer.text
    await nodes.release("moved")
    answer = await nodes.sites[0].enrol("moved", moved, other["token"])
    stays = await nodes.sites[0].link("moved", answer.json()["credential"], moved)
    path = f"/v1/enrolment-tokens/{leaked['id']}"
    assert (await nodes.api.http.delete(path, params={"agents": "true"})).status_code == 204
    codes = await asyncio.gather(*(links[f"web-{n}"].close_code() for n in range(4)))
    assert codes == [CloseCode.REVOKED] * 4
    for kept in (links["web-4"], links["web-5"], stays):
        await still_linked(kept)
    answer = await nodes.sites[1].enrol("web-9", new_key(), leaked["token"])
    assert (answer.status_code, "wrong enrolment token" in answer.text) == (401, True)
    answer = await nodes.sites[1].enrol("web-0", keys["web-0"], other["token"])
    assert (answer.status_code, "was revoked" in answer.text) == (401, True)
    assert (await nodes.api.http.delete(path, params={"agents": "true"})).status_code == 404
    unused = (await nodes.api.http.post("/v1/enrolment-tokens", json={"agents": "*"})).json()["id"]
    done = await nodes.api.http.delete(f"/v1/enrolment-tokens/{unused}", params={"agents": "true"})
    assert done.status_code == 204


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


class ListedKeys:
    """The revoked keys of a Redis; `read` counts those that were asked for."""

    def __init__(self) -> None:
        self.keys: set[RevokedKey] = set()
        self.read = 0

    async def since(self, at: int) -> frozenset[RevokedKey]:
        found = frozenset(key for key in self.keys if key.at > at)
        self.read += len(found)
        return found

    async def count(self, at: int) -> int:
        return sum(key.at > at for key in self.keys)

    async def add(self, keys: Iterable[RevokedKey], now: int) -> None:
        self.keys = {key for key in self.keys if key.at > now - KEPT_MS} | set(keys)


async def test_many_revoked_keys_are_read_once_and_forgotten_in_time() -> None:
    """A leaked token may have enrolled thousands of agents. Reading all their keys each second would hold the loop."""
    listed, clock = ListedKeys(), [1_000 * KEPT_MS]
    stored: Any = listed
    nobody: Any = SimpleNamespace(get=lambda _agent: None, registering=lambda _agent: None)
    revocations = KeyRevocations(stored, nobody, lambda: clock[0])
    listed.keys = {RevokedKey(clock[0] - n % 2, f"key-{n}", f"web-{n}") for n in range(5_000)}
    await revocations.refresh()
    assert listed.read == 5_000
    clock[0] += 2 * OVERLAP_MS
    await revocations.refresh()
    listed.read = 0
    for _ in range(10):
        clock[0] += 1_000
        await revocations.refresh()
    assert listed.read == 0
    listed.keys.add(RevokedKey(clock[0] - OVERLAP_MS // 2, "late", "web-late"))  # by a node whose clock is behind
    await revocations.refresh()
    assert (revocations.holds("late"), listed.read) == (True, 1)
    listed.keys |= {RevokedKey(clock[0] - KEPT_MS // 2, "old", "a"), RevokedKey(clock[0], "key-0", "web-0")}
    await revocations.refresh()
    assert revocations.revoked_at("old") == clock[0] - KEPT_MS // 2, "another node has written it back"
    listed.keys.discard(RevokedKey(clock[0], "key-0", "web-0"))
    await revocations.refresh()
    assert RevokedKey(clock[0], "key-0", "web-0") in listed.keys, "this node has written it back"
    clock[0] += KEPT_MS - OVERLAP_MS
    await revocations.refresh()
    assert [revocations.holds(name) for name in ("key-1", "key-0", "late", "old")] == [False, True, True, False]
    listed.read = 0
    await revocations.refresh()
    assert listed.read == 0, "what was forgotten is not taken for lost"


async def test_a_tenant_does_not_use_up_the_places_of_the_others() -> None:
    """Nor do keys that are held because of copies use up those that administrators need."""
    listed, clock, tenants = ListedKeys(), [1_000 * KEPT_MS], [4]
    stored: Any = listed
    nobody: Any = SimpleNamespace(get=lambda _agent: None, registering=lambda _agent: None)
    revocations = KeyRevocations(stored, nobody, lambda: clock[0], lambda: tenants[0])
    listed.keys = {RevokedKey(clock[0], f"key-{n}", f"/acme/web-{n}") for n in range(KEYS_LIMIT // 8)}
    await revocations.refresh()
    await revocations.require_room("acme")
    with pytest.raises(Unavailable, match="this tenant has 2500 revoked keys"):
        await revocations.require_room("acme", share=HELD_SHARE)
    await revocations.require_room("acme", KEYS_LIMIT // 8)
    with pytest.raises(Unavailable, match="this tenant has 5000 revoked keys"):
        await revocations.require_room("acme", KEYS_LIMIT // 8 + 1)
    await revocations.require_room("globex", share=HELD_SHARE)
    tenants[0] = 257
    with pytest.raises(Unavailable, match="this tenant has 200 revoked keys"):
        await revocations.require_room("acme")


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


def test_a_line_that_is_to_refuse_a_key_is_never_passed_over(tmp_path: Path) -> None:
    """A key that was meant to be refused would otherwise be believed, and nobody would notice."""
    file = make_issuer_key(tmp_path)
    (tmp_path / "other").mkdir()
    old, new = file.read_bytes(), make_issuer_key(tmp_path / "other").read_bytes()
    for mark in (b"refused\n", b"refused \r\n", b"refused\n\n"):
        file.write_bytes(new + mark + old)
        refused = CredentialIssuer(seed_of_pem(old, "old"), "fairlead").issue("id", "web-1", new_key().public, 0, 60)
        with pytest.raises(Unauthorized, match="not signed by an issuer"):
            IssuerKeyFile(file, "fairlead").verifier.verify(refused, 0)
    for mark in (b"Refused\n", b"# refused\n", b"refused:\n", b"refused key\n", b" refused\n", b"refused\nstolen\n"):
        for text in (new + mark + old, new + old + mark):
            file.write_bytes(text)
            with pytest.raises(ConfigError, match="a line in it refuses no key"):
                IssuerKeyFile(file, "fairlead")


async def test_a_refused_key_of_the_issuer_loses_its_links_on_every_node(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> None:
    """Whoever has stolen it makes credentials for any id: none of them has a link 5 seconds later, or opens another."""
    file = make_issuer_key(tmp_path)
    (tmp_path / "other").mkdir()
    old, new = file.read_bytes(), make_issuer_key(tmp_path / "other").read_bytes()
    flags = ("--issuer-key", str(file), "--audit-log", str(tmp_path / "audit"))
    nodes = [make_gateway(own_valkey.url, *flags, name=name) for name in ("a", "b")]
    store = await redis_of(own_valkey)
    sites = [IdentitySite(node, store) for node in nodes]
    forger = CredentialIssuer(seed_of_pem(old, "stolen"), "fairlead")
    forged, links = [], []
    for n in range(AGENTS):
        key = new_key()
        text = forger.issue(f"id-{n}", f"forged-{n}", key.public, int(time.time()), 3600)
        forged.append((f"forged-{n}", key, text))
        links.append(await sites[n % 2].link(f"forged-{n}", text, key))
    silent, _ = await sites[0].dial("forged-0", forged[0][2])  # it has not said hello
    shared, _ = await sites[1].dial("plain", AGENT_TOKEN)
    await shared.greet()
    replace(file, new + old)
    honest_key = new_key()
    await until(lambda: signs_otherwise(sites[0], honest_key, forged[0][2].split(".")[0]))
    await until(lambda: signs_otherwise(sites[1], honest_key, forged[0][2].split(".")[0]))
    honest = await sites[1].link("honest", await sites[1].credential("honest", honest_key), honest_key)
    for link in links:
        await still_linked(link)  # a rotation closes nothing
    before = [len(node.log()) for node in nodes]
    replace(file, new + b"refused\n" + old)
    assert [await link.close_code() for link in links] == [CloseCode.DISCONNECTED] * AGENTS
    assert await silent.close_code() == CloseCode.DISCONNECTED
    for n, (agent, _, text) in enumerate(forged):
        with pytest.raises(websockets.InvalidStatus, match="401"):
            await sites[n % 2].dial(agent, text)
    for link in (shared, honest):
        await still_linked(link)
    for node, start in zip(nodes, before, strict=True):
        await until(lambda node=node, start=start: "refused the issuer's key" in node.log(start))  # type: ignore[misc]

    def closed() -> int:
        lines = read_lines(tmp_path / "audit")
        return sum(line.count or 0 for line in lines if line.action == "refuseIssuerKey")

    await until(lambda: closed() == AGENTS + 1)
    found = (await api_of(nodes[0]).agent("forged-1"))["last_close"]
    assert found == "4004 (disconnected by the platform: reconnect)"
    replace(file, b"refused\n" + new + b"refused\n" + old)
    await until(lambda: "all its keys are refused: expected one that signs" in nodes[0].log(before[0]))
    await still_linked(honest)
    for site in sites:
        await site.aclose()


async def unusable_file_changes_nothing(site: IdentitySite, file: Path, credential: str) -> None:
    node: GatewayProcess = site.node
    before = len(node.log())
    replace(file, b"no key")
    await until(lambda: "the keys stay as they were" in node.log(before))
    assert await is_accepted(site, credential)
