"""Agents with client certificates at real nodes: each is itself, whatever else it presents, and a revoked one is
gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.agent import Agent, TlsFiles
from fairlead.agent.identity import AgentIdentity
from fairlead.audit.verification import read_lines
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, End

from support.carrier.authority import Authority
from support.fixtures import RedisOf
from support.gateway.certified_fleet import TOKEN, CertifiedFleet
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def flags_of(authority: Authority, *more: str) -> tuple[str, ...]:
    certificate, key = authority.server()
    tls = ("--link-tls-cert", str(certificate), "--link-tls-key", str(key))
    return (*tls, "--heartbeat", "600", "--link-tls-client-ca", str(authority.file), *more)


@pytest.fixture
async def fleet(
    tmp_path: Path, authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> AsyncIterator[CertifiedFleet]:
    """Two nodes that enrol agents too, the first with an audit log."""
    optional = flags_of(authority, "--link-tls-client-auth", "optional", "--issuer-key", str(make_issuer_key(tmp_path)))
    first = make_gateway(own_valkey.url, *optional, "--audit-log", str(tmp_path / "audit"))
    made = CertifiedFleet(authority, first, make_gateway(own_valkey.url, *optional, name="node-2"))
    yield made
    await made.aclose()


async def test_nobody_takes_an_id_with_a_certificate_of_its_own(fleet: CertifiedFleet, tmp_path: Path) -> None:
    """Ten attempts of each kind; the real agent's link stays, and the audit log has them all."""
    files, own = fleet.authority.client("victim"), fleet.authority.client("attacker")
    victim = await fleet.link("victim", files)
    for _ in range(10):
        for token in ("", TOKEN):
            code, reason = await fleet.close_code("victim", own, token)
            assert (code, "is that of agent attacker" in reason) == (CloseCode.IDENTITY, True)
        for node in (0, 1):
            code, reason = await fleet.close_code("victim", None, TOKEN, node)
            assert (code, "bound to another key" in reason) == (CloseCode.IDENTITY, True)
        code, _ = await fleet.close_code("unbound", own)
        assert code == CloseCode.IDENTITY
    await still_linked(victim)
    lines = [line for line in read_lines(tmp_path / "audit") if line.action == "openLink"]
    shown = sum(int(line.detail.split()[0]) for line in lines if line.detail)
    assert {(line.subject, line.outcome) for line in lines} == {("agent:attacker", "denied"), ("agent-token", "denied")}
    assert {line.agent for line in lines} == {"victim", "unbound"}
    assert len(lines) + shown <= 40
    assert len(lines) >= 10


async def test_a_key_is_replaced_by_a_later_certificate_and_never_by_an_earlier_one(fleet: CertifiedFleet) -> None:
    authority = fleet.authority
    first = authority.write("first", authority.issue("web-1", since=-600))
    second = authority.write("second", authority.issue("web-1", since=-300))
    early = authority.write("early", authority.issue("web-1", since=-900))
    old_link = await fleet.link("web-1", first)
    assert (await fleet.close_code("web-1", early))[0] == CloseCode.IDENTITY
    await still_linked(old_link)
    await still_linked(await fleet.link("web-1", second, node=1))
    for files in (first, early):
        for node in (0, 1):
            assert (await fleet.close_code("web-1", files, node=node))[0] == CloseCode.IDENTITY
    await still_linked(await fleet.link("web-1", second))


async def test_the_same_key_may_come_with_an_earlier_certificate(fleet: CertifiedFleet) -> None:
    key = fleet.authority.issue("x")[1]
    later = fleet.authority.write("later", fleet.authority.issue("web-1", since=-60, key=key))
    earlier = fleet.authority.write("earlier", fleet.authority.issue("web-1", since=-600, key=key))
    thief = fleet.authority.write("thief", fleet.authority.issue("web-1", since=-300))
    for files in (later, earlier):
        await still_linked(await fleet.link("web-1", files))
    assert (await fleet.close_code("web-1", thief))[0] == CloseCode.IDENTITY


async def test_revoked_agents_lose_their_links_on_both_nodes(fleet: CertifiedFleet) -> None:
    """Ten agents on two nodes, half of them revoked with commands that run; nothing happens to the others."""
    files = {f"web-{n}": fleet.authority.client(f"web-{n}") for n in range(10)}
    links = {name: await fleet.link(name, one, node=n % 2) for n, (name, one) in enumerate(files.items())}
    commands = {}
    for name, link in links.items():
        posted = await fleet.api.post("/v1/commands", json={"agent": name, "method": "exec", "unchecked": True})
        commands[name] = posted.json()["id"]
        await link.command()
    doomed = [name for n, name in enumerate(links) if n % 4 < 2]
    for name in doomed:
        await fleet.revoke(name)
    codes = await asyncio.gather(*(links[name].close_code() for name in doomed))
    assert set(codes) == {CloseCode.REVOKED}
    for name in doomed:
        for node in (0, 1):
            status, text = await fleet.refusal(name, files[name], node=node)
            assert (status, "was revoked" in text) == (401, True)
    for name in set(links) - set(doomed):
        await links[name].send(Ack(id=commands[name], state="accepted"))
        await links[name].send(End(id=commands[name], state="ok", total=0))
        await still_linked(links[name])


async def test_a_released_id_goes_to_a_certificate_that_was_issued_later(fleet: CertifiedFleet) -> None:
    authority = fleet.authority
    old = authority.write("old", authority.issue("web-1", since=-600))
    older = authority.write("older", authority.issue("web-1", since=-900))
    new = authority.write("new", authority.issue("web-1", since=-300))
    link = await fleet.link("web-1", old)
    await fleet.revoke("web-1")
    assert await link.close_code() == CloseCode.REVOKED
    assert (await fleet.close_code("web-1", new))[0] == CloseCode.IDENTITY
    assert await fleet.release("web-1") == 204
    assert (await fleet.close_code("web-1", older))[0] == CloseCode.IDENTITY
    assert (await fleet.refusal("web-1", old))[0] == 401
    await still_linked(await fleet.link("web-1", new))
    assert (await fleet.close_code("web-1", older))[0] == CloseCode.IDENTITY


async def test_a_certificate_and_a_credential_are_of_one_agent(fleet: CertifiedFleet, redis_of: RedisOf,
    own_valkey: EmbeddedValkey) -> None:  # fmt: skip
    """The credential's key has the id; a certificate for the id then opens no link by itself."""
    site = IdentitySite(fleet.nodes[0], await redis_of(own_valkey))
    site.http = type(site.http)(
        base_url=fleet.nodes[0].link.replace("ws://127.0.0.1", "https://localhost"), verify=fleet.context(None)
    )
    key = new_key()
    credential = await site.credential("web-1", key)
    mine, other = fleet.authority.client("web-1"), fleet.authority.client("web-2")
    status, text = await fleet.refusal("web-1", other, credential)
    assert (status, "expected both of one agent" in text) == (401, True)
    code, reason = await fleet.close_code("web-1", mine, credential)
    assert (code, "wrong proof of possession" in reason) == (CloseCode.IDENTITY, True)
    code, reason = await fleet.close_code("web-1", mine)
    assert code == CloseCode.IDENTITY, reason
    status, text = await fleet.refusal("web-1", mine, "a-wrong-token-altogether")
    assert status == 401
    await site.aclose()


async def test_an_agent_with_a_certificate_cannot_enrol_as_one_that_has_another(fleet: CertifiedFleet,
    redis_of: RedisOf, own_valkey: EmbeddedValkey) -> None:  # fmt: skip
    link = await fleet.link("web-1", fleet.authority.client("web-1"))
    site = IdentitySite(fleet.nodes[0], await redis_of(own_valkey))
    site.http = type(site.http)(
        base_url=fleet.nodes[0].link.replace("ws://127.0.0.1", "https://localhost"), verify=fleet.context(None)
    )
    answer = await site.enrol("web-1", new_key())
    assert (answer.status_code, "bound to another key" in answer.text) == (401, True)
    await still_linked(link)
    await site.aclose()


async def required(authority: Authority, make: MakeGateway, redis: str, *more: str) -> CertifiedFleet:
    return CertifiedFleet(authority, make(redis, *flags_of(authority, *more)))


async def test_an_sdk_agent_enrols_through_a_port_that_requires_a_certificate(
    tmp_path: Path, authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf
) -> None:
    """The certificate is the way through the wall; the id is then bound to the key that the agent has made."""
    fleet = await required(authority, make_gateway, own_valkey.url, "--issuer-key", str(make_issuer_key(tmp_path)))
    site = IdentitySite(fleet.nodes[0], await redis_of(own_valkey))
    identity = AgentIdentity(tmp_path / "identity", await site.token())
    files = authority.client("web-1")
    url = f"wss://localhost:{fleet.nodes[0].link.rpartition(':')[2]}"
    agent = Agent(url, "web-1", identity, ssl=TlsFiles(*files, authority.file))
    serving = asyncio.create_task(agent.serve())

    async def online() -> bool:
        answer = await fleet.api.get("/v1/agents/web-1")
        return answer.status_code == 200 and answer.json()["state"] == "online"

    await until(online)
    code, reason = await fleet.close_code("web-1", files)
    assert (code, "bound to another key" in reason) == (CloseCode.IDENTITY, True)
    agent.stop()
    await serving
    await site.aclose()
    await fleet.aclose()


async def test_where_identity_is_required_a_certificate_is_one(
    authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    """Without an issuer of credentials; the development token in the settings opens nothing, so any host is fine."""
    flags = ("--require-identity", "--link-host", "0.0.0.0", "--link-tls-client-auth", "optional")
    fleet = await required(authority, make_gateway, own_valkey.url, *flags)
    fleet.nodes[0].link = fleet.nodes[0].link.replace("0.0.0.0", "127.0.0.1")
    files = authority.client("web-1")
    await still_linked(await fleet.link("web-1", files))
    await still_linked(await fleet.link("web-1", files, TOKEN))
    status, text = await fleet.refusal("web-2", None, TOKEN)
    assert (status, "a shared token opens no link here" in text) == (401, True)
    assert (await fleet.refusal("web-2", None))[0] == 401
    await fleet.aclose()


async def test_the_certificate_of_a_trusted_proxy_is_no_agents(
    authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    """Behind a proxy that shows a certificate of its own, the shared token opens no link where one is required."""
    fleet = await required(authority, make_gateway, own_valkey.url, "--trusted-proxies", "127.0.0.0/8")
    files = authority.client("proxy")
    status, text = await fleet.refusal("web-1", files, TOKEN)
    assert (status, "a shared token opens no link here" in text) == (401, True)
    assert (await fleet.refusal("proxy", files))[0] == 401
    await fleet.aclose()


async def test_an_id_from_a_uri(authority: Authority, own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    prefix = "spiffe://example.com/agents/"
    fleet = await required(authority, make_gateway, own_valkey.url, "--link-tls-client-id", prefix)
    named = authority.write("named", authority.issue("someone", uris=[prefix + "web-1"]))
    await still_linked(await fleet.link("web-1", named))
    for name, uris in (("web-2", None), ("web-2", ["spiffe://example.com/others/web-2"])):
        files = authority.write("other", authority.issue(name, uris=uris))
        status, text = await fleet.refusal("web-2", files)
        assert (status, "client certificate" in text) == (401, True)
    await fleet.aclose()


def test_files_that_contradict_are_refused_at_the_start(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.server()
    tls = ["--link-tls-cert", str(certificate), "--link-tls-key", str(key)]
    ca = ["--link-tls-client-ca", str(authority.file)]
    for flags, reason in (
        (ca, "link port does not speak TLS"),
        ([*tls, "--link-tls-client-crl", str(key)], "link_tls_client_crl is set without link_tls_client_ca"),
        ([*tls, *ca, "--link-tls-client-id", "spiffe://x"], "link-tls-client-id"),
        ([*tls, "--link-tls-client-ca", str(key)], "certificate authorities"),
    ):
        node = GatewayProcess(tmp_path, "embedded", tuple(flags))
        with pytest.raises(AssertionError, match=reason):
            node.start()
        node.stop()
