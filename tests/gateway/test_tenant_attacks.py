"""One tenant against another, in every operation of the API: the attacks are generated from the served document.

The attacker has every method and verb in its own tenant, and knows every id of the victim. Each operation is asked with
each of the victim's ids and with one of the same form that never was: both answers must be the same. An operation, or a
parameter of one, for which no attack is known fails the test. Afterwards the victim has what it had before.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.identity.credential import CredentialIssuer
from fairlead.identity.proof import prove, renewal_statement
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, End, Event

from support.fixtures import RedisOf
from support.gateway.identity_site import make_issuer_key, still_linked
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.tenant_attacks import NEVER, SECRET_CONTENT, SECRET_DIGEST, play_attack, tenant_attacks
from support.gateway.tenant_fleets import ATTACKER, VICTIM, TenantFleet, fill, found_fleet, write_tenants
from support.waiting import until


@pytest.fixture
async def fleets(
    tmp_path: Path, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, api_of: MakeGatewayApi
) -> AsyncIterator[tuple[TenantFleet, TenantFleet]]:
    roles, store = write_tenants(tmp_path / "roles.yaml"), await redis_of(own_valkey)
    flags = (
        "--roles",
        str(roles),
        "--issuer-key",
        str(make_issuer_key(tmp_path)),
        "--audit-log",
        str(tmp_path / "audit"),
    )
    (tmp_path / "sinks.toml").write_text(
        f'[sinks.secret-sink]\nurl = "https://127.0.0.1:1/"\nsecrets = ["whsec_{"A" * 32}"]\n'
        f'tenant = "{VICTIM}"\nretry_for = 0\n'
    )
    sinks = "--event-sinks", str(tmp_path / "sinks.toml")
    node = make_gateway(own_valkey.url, *flags, *sinks, "--terminal-recordings", str(tmp_path / "terminals"))
    attacker, victim = [await found_fleet(tenant, node, store, api_of) for tenant in (ATTACKER, VICTIM)]
    await fill(victim)

    async def dead() -> bool:
        return len(await victim.dead_letters()) == 2

    await until(dead)
    victim.letters = await victim.dead_letters()
    await attacker.link("web-1")
    yield attacker, victim
    for fleet in (attacker, victim):
        await fleet.site.aclose()


@pytest.mark.timeout(300)
async def test_no_operation_shows_or_changes_what_another_tenant_has(
    fleets: tuple[TenantFleet, TenantFleet], capsys: pytest.CaptureFixture[str]
) -> None:
    attacker, victim = fleets
    document = (await attacker.boss.http.get("/v1/openapi.json")).json()
    events = [json.loads(line) for line in (await victim.boss.http.get("/v1/events")).text.splitlines()]
    before, count, counts = await victim.state(), 0, dict[str, int]()
    for name, attack in tenant_attacks(document, victim, events[-1]["offset"]):
        count += await play_attack(attacker, victim, name, attack)
        counts[name] = counts.get(name, 0) + 1
    assert counts.keys() == {one["operationId"] for path in document["paths"].values() for one in path.values()}
    assert await victim.state() == before
    for agent in victim.agents.values():
        await still_linked(agent)
    with capsys.disabled():
        print(f"\n{count} requests of one tenant against another in {len(counts)} operations: {counts}")


async def test_a_content_of_another_tenant_does_not_exist(fleets: tuple[TenantFleet, TenantFleet]) -> None:
    attacker, victim = fleets
    assert (await victim.boss.http.put(f"/v1/contents/{SECRET_DIGEST}", content=SECRET_CONTENT)).status_code == 200
    for path, body in (("/v1/runs", {"agents": ["web-1"]}), ("/v1/commands", {"agent": "web-1"})):
        told = set()
        for digest in (SECRET_DIGEST, NEVER["digest"]):
            answer = await attacker.boss.http.post(
                path, json={"method": "script", "content": digest, "unchecked": True, **body}
            )
            assert (answer.status_code, answer.json()["field"]) == (422, "content")
            told.add(answer.json()["detail"].replace(digest, "DIGEST"))
        assert len(told) == 1
    stored = await attacker.boss.http.put(f"/v1/contents/{SECRET_DIGEST}", content=SECRET_CONTENT)
    assert stored.status_code == 200  # its own now, and it could not tell that the victim has the same
    for fleet in fleets:
        posted = await fleet.boss.http.post(
            "/v1/runs", json={"method": "script", "content": SECRET_DIGEST, "unchecked": True, "agents": ["web-1"]}
        )
        assert posted.status_code == 202, posted.text


async def test_an_agent_of_another_tenant_is_not_this_one(
    fleets: tuple[TenantFleet, TenantFleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What agents send for ids and commands of another tenant goes nowhere, and the real agents stay."""
    attacker, victim = fleets
    before, count = await victim.state(), 0
    site, credential, key = attacker.site, attacker.credentials["web-1"], attacker.keys["web-1"]
    for claimed in ("only-here", f"/{VICTIM}/only-here", f"{VICTIM}/only-here", f"/{VICTIM}/web-1"):
        code = await site.close_code(claimed, credential, proof="x", key=None if "/" in claimed else key)
        assert code in (CloseCode.IDENTITY, CloseCode.PROTOCOL), claimed
        count += 1
    stolen = victim.credentials["only-here"]
    assert await site.close_code("only-here", stolen, key=key) == CloseCode.IDENTITY
    proof = prove(key, renewal_statement("only-here", stolen))
    assert (await site.http.post("/v1/renewals", json={"credential": stolen, "proof": proof})).status_code == 401
    forged = CredentialIssuer(b"x" * 32, "fairlead").issue(
        "id", f"/{VICTIM}/only-here", key.public, 1_700_000_000, 3600
    )
    proof = prove(key, renewal_statement("only-here", forged))
    assert (await site.http.post("/v1/renewals", json={"credential": forged, "proof": proof})).status_code == 401
    # The same id with the same key, enrolled in the other tenant, is another agent.
    attacker.keys["only-here"] = victim.keys["only-here"]
    twin = await attacker.link("only-here")
    count += 4
    for command in (*victim.commands, *victim.runs):
        for name, agent in (("web-1", attacker.agents["web-1"]), ("only-here", twin)):
            await agent.send(
                Ack(id=command), Chunk(id=command, n=1, kind="stdout", payload=b"forged"),
                End(id=command, total=2, payload=b'"forged"'),
                Event(id=f"forged-{command}-{name}", type="forged"),
            )  # fmt: skip
            count += 4

    async def handled() -> bool:
        return (await attacker.boss.http.get("/v1/events")).text.count('"forged"') == 2 * len(
            victim.commands + victim.runs
        )

    await until(handled)
    assert await victim.state() == before
    for agent in victim.agents.values():
        await still_linked(agent)
    with capsys.disabled():
        print(f"\n{count} attacks of agents of one tenant on another")
