"""Agents with JWTs of a trusted issuer at real nodes: attacks with their counts, rotation of keys, revocation, and a
link that ends with its JWT."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from fairlead.agent import Agent
from fairlead.agent.settings.token_file import TokenFile
from fairlead.audit.records import LINKS_CLOSED
from fairlead.audit.verification import read_lines
from fairlead.oidc.issuer_keys import MIN_INTERVAL
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode

from support.carrier.authority import Authority
from support.gateway.certified_fleet import TOKEN, CertifiedFleet
from support.gateway.identity_site import still_linked
from support.gateway.process import MakeGateway
from support.oidc.agent_jwts import agent_jwt, forged_jwts, write_link_issuers
from support.oidc.issuer import Issuer, new_key, sign
from support.waiting import until

TIMES = 2
"""Attempts of each kind."""


@pytest.fixture
async def fleet(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, issuer: Issuer, tmp_path: Path
) -> AsyncIterator[CertifiedFleet]:
    flags = ("--heartbeat", "600", "--link-issuers", str(write_link_issuers(issuer.url, tmp_path / "issuers.toml")))
    nodes = [
        make_gateway(own_valkey.url, *flags, "--audit-log", str(tmp_path / f"audit-{n}"), name=f"node-{n}")
        for n in (1, 2)
    ]
    made = CertifiedFleet(Authority(tmp_path), *nodes)
    yield made
    await made.aclose()


async def refused(fleet: CertifiedFleet, text: str, agent: str = "web-1", node: int = 0) -> str:
    """Why; an address with many wrong credentials is told the same with another status."""
    status, body = await fleet.refusal(agent, None, text, node)
    assert status in (401, 429), (status, body)
    return str(json.loads(body)["detail"])


async def linked(fleet: CertifiedFleet, issuer: Issuer, agent: str, node: int = 0, **more: Any) -> Any:
    return await fleet.link(agent, None, agent_jwt(issuer, agent, **more), node)


async def test_each_forged_or_foreign_jwt_is_refused_with_its_reason(fleet: CertifiedFleet, issuer: Issuer) -> None:
    """The real agent's link stays all the time, and its token goes on to open links."""
    victim = await linked(fleet, issuer, "web-1")
    attacks = forged_jwts(issuer)
    for name, text, reason in attacks:
        for _ in range(TIMES):
            assert reason in await refused(fleet, text), name
    assert len(attacks) * TIMES == 40
    await still_linked(victim)
    await still_linked(await linked(fleet, issuer, "web-1", 1))


async def test_nobody_takes_an_id_with_a_jwt_of_its_own(fleet: CertifiedFleet, issuer: Issuer) -> None:
    """Of itself, of another account of the same issuer, or with the shared token, ten times each."""
    victim = await linked(fleet, issuer, "web-1")
    for _ in range(10):
        code, reason = await fleet.close_code("web-1", None, agent_jwt(issuer, "attacker"))
        assert (code, "is that of agent attacker" in reason) == (CloseCode.IDENTITY, True)
        other = agent_jwt(issuer, "web-1", sub="system:serviceaccount:edge:other")
        assert (await fleet.close_code("web-1", None, other, 1))[0] == CloseCode.IDENTITY
        assert (await fleet.close_code("web-1", None, TOKEN))[0] == CloseCode.IDENTITY
    await still_linked(victim)
    row = (await fleet.api.get("/v1/agents/web-1")).json()
    assert row["labels"] == {"zone": "a"}


async def test_keys_rotate_in_mid_link_and_the_issuer_may_be_away(
    fleet: CertifiedFleet, issuer: Issuer, tmp_path: Path
) -> None:
    first = await linked(fleet, issuer, "web-1")
    issuer.rotate("second", keep=True)

    async def opened(agent: str) -> bool:
        """An unknown key is looked for, but not twice within MIN_INTERVAL."""
        try:
            await linked(fleet, issuer, agent)
        except websockets.InvalidStatus:
            return False
        return True

    await until(lambda: opened("web-2"), MIN_INTERVAL * 6)
    await still_linked(first)
    issuer.away = True
    await still_linked(await linked(fleet, issuer, "web-3"))
    await still_linked(first)
    third = new_key("third")
    assert "does not publish" in await refused(fleet, sign(third, issuer.claims()))
    issuer.away = False
    write_link_issuers(issuer.url, tmp_path / "issuers.toml", refused='"first"')
    assert await first.close_code() == CloseCode.EXPIRED, "a refused key keeps its links"
    assert first.socket.close_reason == "the issuer of the agent's JWT, or its key, is not trusted any more"

    def told() -> list[tuple[str, int | None]]:
        lines = [line for n in (1, 2) for line in read_lines(tmp_path / f"audit-{n}")]
        return [(line.reason, line.count) for line in lines if line.action == LINKS_CLOSED]

    await until(lambda: told() == [("the key 'first' of the issuer cluster is refused", 1)])


async def test_an_issuer_that_is_removed_loses_its_links_on_both_nodes(
    fleet: CertifiedFleet, issuer: Issuer, tmp_path: Path
) -> None:
    links = [await linked(fleet, issuer, f"web-{node}", node) for node in (0, 1)]
    other = Issuer()
    write_link_issuers(other.url, tmp_path / "issuers.toml")
    async with asyncio.timeout(5):
        assert [await link.close_code() for link in links] == [CloseCode.EXPIRED] * 2

    def told() -> list[tuple[bool, int | None]]:
        lines = [line for n in (1, 2) for line in read_lines(tmp_path / f"audit-{n}") if line.action == LINKS_CLOSED]
        return [(f"the issuer {issuer.url} is not trusted" in line.reason, line.count) for line in lines]

    await until(lambda: told() == [(True, 1)] * 2)
    text = await refused(fleet, agent_jwt(issuer))
    assert issuer.url in text
    assert other.url not in text, "a stranger learns whose JWTs would be good"
    assert f"trusted there: {other.url}" in fleet.nodes[0].log()
    other.close()


async def test_a_node_without_keys_says_to_try_again(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, issuer: Issuer, tmp_path: Path
) -> None:
    issuer.away = True
    node = make_gateway(
        own_valkey.url, "--link-issuers", str(write_link_issuers(issuer.url, tmp_path / "issuers.toml"))
    )
    fleet = CertifiedFleet(Authority(tmp_path), node)
    status, text = await fleet.refusal("web-1", None, agent_jwt(issuer))
    assert (status, "keys cannot be fetched" in text) == (503, True)
    await still_linked(await fleet.link("web-2", None, TOKEN))
    await fleet.aclose()


async def test_the_keys_of_an_issuer_that_asks_for_a_token(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, issuer: Issuer, tmp_path: Path
) -> None:
    """As the discovery of Kubernetes does. The token is read anew, because it is replaced every hour."""
    issuer.bearer = "the-second-token"
    shown = tmp_path / "node.token"
    shown.write_text("the-first-token")
    file = write_link_issuers(issuer.url, tmp_path / "issuers.toml")
    file.write_text(file.read_text() + f'token_file = "{shown}"\n')
    fleet = CertifiedFleet(Authority(tmp_path), make_gateway(own_valkey.url, "--link-issuers", str(file)))
    status, text = await fleet.refusal("web-1", None, agent_jwt(issuer))
    assert (status, "the status 401" in text) == (503, True)
    shown.write_text(issuer.bearer)

    async def opened() -> bool:
        try:
            await linked(fleet, issuer, "web-1")
        except websockets.InvalidStatus:
            return False
        return True

    await until(opened)
    await fleet.aclose()


async def test_a_revoked_agent_is_gone_from_every_node_and_comes_back_with_a_later_jwt(
    fleet: CertifiedFleet, issuer: Issuer
) -> None:
    before = agent_jwt(issuer, "web-1", iat=int(time.time()) - 20)
    link, other = await fleet.link("web-1", None, before, 1), await linked(fleet, issuer, "web-2", 1)
    await fleet.revoke("web-1")
    assert await link.close_code() == CloseCode.REVOKED
    assert "was revoked" in await refused(fleet, before)
    later = agent_jwt(issuer, "web-1", iat=int(time.time()) + 10)
    assert (await fleet.close_code("web-1", None, later))[0] == CloseCode.IDENTITY
    assert await fleet.release("web-1") == 204
    assert "was revoked" in await refused(fleet, before)
    await still_linked(await fleet.link("web-1", None, later))
    await still_linked(other)


async def test_an_agent_moves_to_the_new_token_of_its_file_before_the_old_one_ends(
    fleet: CertifiedFleet, issuer: Issuer, tmp_path: Path
) -> None:
    """The command that runs meanwhile ends over the new link."""
    file = tmp_path / "token"
    file.write_text(agent_jwt(issuer, "web-1", exp=int(time.time()) + 24))
    file.chmod(0o600)
    agent = Agent(fleet.nodes[0].link, "web-1", TokenFile(file))
    release = asyncio.Event()

    @agent.command("wait")
    async def wait() -> str:
        await release.wait()
        return "done"

    serving = asyncio.create_task(agent.serve())

    async def since() -> str:
        answer = await fleet.api.get("/v1/agents/web-1")
        online = answer.status_code == 200 and answer.json()["state"] == "online"
        return str(answer.json()["since"]) if online else ""

    async def is_linked() -> bool:
        return bool(await since())

    await until(is_linked)
    began = await since()
    posted = await fleet.api.post("/v1/commands", json={"agent": "web-1", "method": "wait"})
    command = posted.json()["id"]
    fresh = tmp_path / "fresh"
    fresh.write_text(agent_jwt(issuer, "web-1", jti=secrets.token_hex(4)))
    fresh.chmod(0o600)
    fresh.replace(file)

    async def has_moved() -> bool:
        return await since() not in ("", began)

    await until(has_moved, 90)
    release.set()

    async def ended() -> bool:
        shown = (await fleet.api.get(f"/v1/commands/{command}")).json()
        return '"ok"' in json.dumps(shown)

    await until(ended, 60)
    agent.stop()
    await serving
