"""People call the API of a real gateway with JWTs of a real issuer: roles, rotation, an issuer that goes away, and the
end of a JWT in the middle of a stream."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from fairlead.audit.verification import read_lines
from fairlead.oidc.issuer_keys import MIN_INTERVAL
from fairlead.oidc.jwt_verifier import LEEWAY
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import ROLES, as_caller, denied, people_flags
from support.gateway.scripted_agent import DialAgent
from support.oidc.issuer import Issuer, new_key, sign
from support.waiting import until

BINDINGS = """\
  - {users: [company:anna], roles: [look]}
  - {groups: [company:deployers], roles: [deploy]}
  - {users: [other:anna], groups: [other:deployers], tokens: [anna], roles: [all]}
"""


@pytest.fixture
def gateway(make_gateway: MakeGateway, own_valkey: EmbeddedValkey, issuer: Issuer, tmp_path: Path) -> GatewayProcess:
    flags = people_flags(tmp_path, issuer, ROLES + BINDINGS)
    return make_gateway(own_valkey.url, *flags, "--audit-log", str(tmp_path / "audit"), name="node-1")


async def refused(api: GatewayApi) -> str:
    """Why; an address with many wrong credentials is told the same with another status."""
    answer = await api.http.get("/v1/agents")
    assert answer.status_code in (401, 429), answer.text
    return str(answer.json()["detail"])


async def test_a_user_has_the_roles_of_the_name_and_of_the_groups(
    gateway: GatewayProcess, issuer: Issuer, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    anna = as_caller(api_of, gateway, issuer.token())
    found = (await anna.http.get("/v1/auth/whoami")).json()
    assert (found["subject"], found["roles"], found["issuer"]) == ("user:company:anna", ["look"], issuer.url)
    assert (found["administrator"], found["groups"]) == (False, [])
    assert "user:company:anna may not use verb label" in denied(
        await anna.http.patch("/v1/agents/web-1", json={"labels": {"a": "b"}})
    )
    both = as_caller(api_of, gateway, issuer.token(groups=["deployers", "unbound"]))
    found = (await both.http.get("/v1/auth/whoami")).json()
    assert (found["roles"], found["groups"]) == (["deploy", "look"], ["deployers", "unbound"])
    asked = {"method": "exec", "selector": "env=dev"}
    assert (await both.http.get("/v1/auth/can-i", params=asked)).json()["allowed"] is True
    assert (await anna.http.get("/v1/auth/can-i", params=asked)).json()["allowed"] is False
    stranger = as_caller(api_of, gateway, issuer.token(sub="bert"))
    assert "it has no role" in denied(await stranger.http.get("/v1/agents"))
    assert (await both.http.get("/v1/agents")).status_code == 200
    lines = [(line.subject, line.issuer, line.action, line.outcome) for line in read_lines(tmp_path / "audit")]
    assert ("user:company:anna", issuer.url, "labelAgent", "denied") in lines
    assert ("user:company:anna", issuer.url, "listAgents", "allowed") in lines
    assert ("user:company:bert", issuer.url, "listAgents", "denied") in lines


async def test_a_jwt_that_is_not_for_here_is_refused_with_its_reason(
    gateway: GatewayProcess, issuer: Issuer, api_of: MakeGatewayApi
) -> None:
    now = time.time()
    for text, problem in (
        (issuer.token(aud="another"), "expected the audience 'fairlead'"),
        (issuer.token(exp=now - 600), "s ago: log in again"),
        (issuer.token(nbf=now + 600), "compare the clocks of the gateway and of the issuer company"),
        (issuer.token(iss="https://evil.example"), "which this gateway does not trust"),
        (sign(new_key("stranger"), issuer.claims()), "which the issuer company does not publish"),
        (sign(new_key("stranger"), issuer.claims(), kid="first"), "is not signed by the issuer company"),
    ):
        assert problem in await refused(as_caller(api_of, gateway, text))
    assert (await as_caller(api_of, gateway, issuer.token()).http.get("/v1/agents")).status_code == 200


async def test_keys_rotate_in_mid_use_and_an_issuer_may_be_away(
    gateway: GatewayProcess, issuer: Issuer, api_of: MakeGatewayApi
) -> None:
    before = as_caller(api_of, gateway, issuer.token())
    assert (await before.http.get("/v1/agents")).status_code == 200
    issuer.rotate("second", keep=True)
    after = as_caller(api_of, gateway, issuer.token())
    # An unknown key is looked for, but not twice within MIN_INTERVAL.
    await until(lambda: _accepted(after))
    assert (await before.http.get("/v1/agents")).status_code == 200, "the old key is still published"
    issuer.away = True
    assert (await after.http.get("/v1/agents")).status_code == 200
    assert (await as_caller(api_of, gateway, issuer.token(sub="anna", jti="2")).http.get("/v1/agents")).is_success
    issuer.rotate("third")  # the keys before it are withdrawn
    issuer.away = False
    last = as_caller(api_of, gateway, issuer.token())
    await until(lambda: _accepted(last))
    assert "does not publish" in await refused(before)
    assert "does not publish" in await refused(after)
    fetches = issuer.asked["/keys"]
    began = time.monotonic()
    forged = [as_caller(api_of, gateway, sign(new_key(f"no-{i}", "EC"), issuer.claims(), "ES256")) for i in range(8)]
    await asyncio.gather(*(api.http.get("/v1/agents") for api in forged))
    most = 1 + (time.monotonic() - began) / MIN_INTERVAL
    assert issuer.asked["/keys"] - fetches <= most, "invented keys cost the issuer next to nothing"


async def _accepted(api: GatewayApi) -> bool:
    return (await api.http.get("/v1/agents")).status_code == 200


async def test_a_stream_ends_with_the_trust_in_its_issuer(
    gateway: GatewayProcess, issuer: Issuer, dial: DialAgent, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    agent = await dial(gateway)
    await agent.greet()
    await api_of(gateway).http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "dev"}})
    anna = as_caller(api_of, gateway, issuer.token(groups=["deployers"]))
    command = await anna.start(agent.agent, "exec")
    await agent.command()
    await agent.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"begun"))
    async with anna.http.stream("GET", f"/v1/commands/{command}/results?follow=true") as stream:
        lines = stream.aiter_lines()
        assert json.loads(await anext(lines))["text"] == "begun"
        issuer.write_file(tmp_path / "issuers.toml", refused_keys='["first"]')
        async with asyncio.timeout(60):
            last = [line async for line in lines][-1]
    assert json.loads(last)["error"]["code"] == "unauthorized"
    assert "which this gateway refuses" in await refused(as_caller(api_of, gateway, issuer.token()))
    # A file with a mistake changes nothing.
    (tmp_path / "issuers.toml").write_text("[issuers.company]\nurl = 7\n")
    await until(lambda: "the issuers stay as they were" in gateway.log())
    assert "which this gateway refuses" in await refused(as_caller(api_of, gateway, issuer.token()))
    changes = [line.detail for line in read_lines(tmp_path / "audit") if line.action == "issuersChanged"]
    assert changes == [issuer.url]


async def test_a_jwt_ends_a_moment_after_it_expires(
    gateway: GatewayProcess, issuer: Issuer, api_of: MakeGatewayApi
) -> None:
    """The leeway is for the clocks, and counts for a JWT that was verified before as well."""
    anna = as_caller(api_of, gateway, issuer.token(exp=time.time() - LEEWAY + 3))

    async def expired() -> bool:
        return (await anna.http.get("/v1/agents")).status_code in (401, 429)

    await until(expired)
    assert "expired" in await refused(anna)
