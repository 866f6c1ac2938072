"""Agents that prove who they are, at real nodes: an attacker with a credential of its own, with a stolen one or with
the shared token takes nobody's id, and the real agent's link stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets

from fairlead.fleet import schema
from fairlead.identity.credential import CredentialIssuer
from fairlead.identity.proof import link_statement, prove, renewal_statement
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode

from support.fixtures import RedisOf
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN


@pytest.fixture(params=["epoll", "asyncio"])
async def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    redis_of: RedisOf,
) -> AsyncIterator[IdentitySite]:
    """Links are accepted in two ways: directly on the epoll, and by uvicorn."""
    key = make_issuer_key(tmp_path)
    node = make_gateway(own_valkey.url, "--issuer-key", str(key), "--link-transport", str(request.param))
    made = IdentitySite(node, await redis_of(own_valkey))
    yield made
    await made.aclose()


async def test_an_agent_enrols_links_and_renews(site: IdentitySite) -> None:
    key = new_key()
    credential = await site.credential("web-1", key)
    agent = await site.link("web-1", credential, key)
    proof = prove(key, renewal_statement("web-1", credential))
    renewed = await site.http.post("/v1/renewals", json={"credential": credential, "proof": proof})
    assert renewed.status_code == 201, renewed.text
    await still_linked(agent)
    await still_linked(await site.link("web-1", renewed.json()["credential"], key, conn=2))


async def test_nobody_takes_the_id_of_an_agent_with_a_key(site: IdentitySite) -> None:
    """Ten attempts of each kind: the link of the real agent stays."""
    victim_key, attacker_key = new_key(), new_key()
    stolen = await site.credential("victim", victim_key)
    victim = await site.link("victim", stolen, victim_key)
    own = await site.credential("attacker", attacker_key)
    _, nonce = await site.dial("victim", stolen)
    overheard = prove(victim_key, link_statement(nonce, "victim", stolen))
    for _ in range(10):
        assert await site.close_code("victim", AGENT_TOKEN) == CloseCode.IDENTITY
        assert await site.close_code("victim", own, key=attacker_key) == CloseCode.IDENTITY
        assert await site.close_code("victim", stolen, key=attacker_key) == CloseCode.IDENTITY
        assert await site.close_code("victim", stolen, overheard) == CloseCode.IDENTITY
        assert await site.close_code("victim", stolen) == CloseCode.IDENTITY
    answer = await site.enrol("victim", attacker_key)
    assert answer.status_code == 401
    assert "bound to another key" in answer.text
    await still_linked(victim)


async def test_a_forged_credential_opens_no_link(site: IdentitySite) -> None:
    forged = CredentialIssuer(b"x" * 32, "fairlead").issue("id", "web-1", new_key().public, 1_700_000_000, 3600)
    for credential in (forged, "a.b.c", AGENT_TOKEN + ".x.y"):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await site.dial("web-1", credential)
        assert refused.value.response.status_code == 401


async def test_the_shared_token_still_opens_links_for_ids_without_a_key(site: IdentitySite) -> None:
    dialled, nonce = await site.dial("plain", AGENT_TOKEN)
    assert nonce == ""
    await dialled.greet()


@pytest.mark.parametrize("transport", ["epoll", "asyncio"])
async def test_only_a_credential_opens_links_where_an_identity_is_required(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, transport: str
) -> None:
    """The shared token and a wrong one get the same answer, so nobody learns whether a token is right."""
    flags = ("--issuer-key", str(make_issuer_key(tmp_path)), "--require-identity", "--link-transport", transport)
    site = IdentitySite(make_gateway(own_valkey.url, *flags), await redis_of(own_valkey))
    key = new_key()
    agent = await site.link("web-1", await site.credential("web-1", key), key)
    answers = []
    for token in (AGENT_TOKEN, "another-token") * 2:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await site.dial("plain", token)
        answers.append((refused.value.response.status_code, bytes(refused.value.response.body or b"")))
    assert len(set(answers)) == 1
    assert answers[0][0] == 401
    assert b"a shared token opens no link here: expected the agent's own credential" in answers[0][1]
    await still_linked(agent)
    await site.aclose()


async def test_a_released_id_is_the_next_keys(site: IdentitySite) -> None:
    old, new = new_key(), new_key()
    first = await site.credential("web-1", old)
    assert await site.keys.release("web-1", 3600)
    assert await site.close_code("web-1", first, key=old) == CloseCode.IDENTITY
    second = await site.credential("web-1", new)
    await still_linked(await site.link("web-1", second, new))
    assert await site.close_code("web-1", first, key=old) == CloseCode.IDENTITY


async def test_a_binding_that_redis_has_lost_is_written_again_by_the_agent(site: IdentitySite) -> None:
    key = new_key()
    credential = await site.credential("web-1", key)
    await site.store.submit("DEL", schema.bound_key("web-1"))
    await site.link("web-1", credential, key)
    assert await site.close_code("web-1", AGENT_TOKEN) == CloseCode.IDENTITY


async def test_broken_requests_are_refused(site: IdentitySite) -> None:
    for path, body, status in (
        ("/v1/enrolments", b"", 400),
        ("/v1/enrolments", b"{}", 422),
        ("/v1/enrolments", b"[" * 4_000, 400),
        ("/v1/enrolments", b"x" * 9_000, 413),
        ("/v1/renewals", b'{"credential": "", "proof": ""}', 401),
        ("/v1/renewals", b'{"credential": 7, "proof": ""}', 422),
    ):
        answer = await site.http.post(path, content=body)
        assert answer.status_code == status, (body[:30], answer.text)
        assert (await site.http.get(path)).status_code == 405
