"""What people have begun or approved acts without them only as long as their issuer and the key of their login are
trusted: schedules, runs that agents join, and approvals."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.fleet.schema import SCHEDULES_DUE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Cmd, End

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import as_caller, denied, people_flags
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.oidc.issuer import Issuer
from support.waiting import until

ROLES = """\
roles:
  work:
    - methods: [work, reboot]
      verbs: [view]
      agents: "*"
  security:
    - gateway: [approve]
bindings:
  - {users: ["company:anna"], tokens: [ci], roles: [work]}
  - {users: ["company:bert"], roles: [security]}
approvals:
  - {methods: [reboot], agents: "*", approvers: [security]}
"""
RUN = {"method": "work", "selector": "*"}


@pytest.fixture
def gateway(make_gateway: MakeGateway, own_valkey: EmbeddedValkey, issuer: Issuer, tmp_path: Path) -> GatewayProcess:
    return make_gateway(own_valkey.url, *people_flags(tmp_path, issuer, ROLES))


def refuse_key(issuer: Issuer, file: Path) -> None:
    """As after the theft of the issuer's key: whoever has it could have been anybody."""
    issuer.write_file(file, refused_keys='["first"]')


def remove_issuer(_issuer: Issuer, file: Path) -> None:
    file.write_text("")


def rename_issuer(issuer: Issuer, file: Path) -> None:
    issuer.write_file(file)
    file.write_text(file.read_text().replace("[issuers.company]", "[issuers.other]"))


async def distrusted(gateway: GatewayProcess, distrust: Any, issuer: Issuer, folder: Path) -> None:
    """The node has read another file of issuers."""
    assert "the file of issuers" not in gateway.log()
    distrust(issuer, folder / "issuers.toml")
    await until(lambda: "read the file of issuers" in gateway.log())


DISTRUST = pytest.mark.parametrize("distrust", [refuse_key, remove_issuer, rename_issuer])


async def is_gone(api: GatewayApi) -> bool:
    """Whether nobody is a user of `company` with this JWT any more."""
    answer = await api.http.get("/v1/auth/whoami")
    return answer.status_code in (401, 403, 429) or not answer.json()["subject"].startswith("user:company:")


async def rotate(issuer: Issuer, gateway: GatewayProcess, api_of: MakeGatewayApi) -> None:
    """The issuer signs with another key, and the node knows it and knows the first one no longer."""
    issuer.rotate("second")
    async with asyncio.timeout(90):
        while (await as_caller(api_of, gateway, issuer.token()).http.get("/v1/auth/whoami")).status_code != 200:
            await asyncio.sleep(1)  # it looks for new keys once in some seconds


async def answer(agent: ScriptedAgent) -> str:
    command = await agent.expect(Cmd)
    await agent.send(Ack(id=command.id), End(id=command.id, total=0))
    return command.id


async def outcome(api: GatewayApi, schedule: str) -> Any:
    found = (await api.http.get("/v1/schedules")).json()["schedules"]
    return next(one["last"] and one["last"]["outcome"] for one in found if one["id"] == schedule)


@DISTRUST
async def test_a_schedule_of_somebody_whose_issuer_or_key_is_refused_begins_nothing(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent, issuer: Issuer,
    redis_of: RedisOf, own_valkey: EmbeddedValkey, tmp_path: Path, distrust: Any,
) -> None:  # fmt: skip
    agent = await dial(gateway)
    await agent.greet()
    anna, redis = as_caller(api_of, gateway, issuer.token()), await redis_of(own_valkey)
    made = await anna.http.post("/v1/schedules", json={"name": "n", "cron": "0 0 1 1 *", "run": RUN})
    assert made.status_code == 201, made.text
    id = made.json()["id"]

    async def due(wanted: str) -> None:
        await redis.submit("ZADD", SCHEDULES_DUE, int(time.time() * 1000) - 500, id)
        await until(lambda: ended_as(wanted))

    async def ended_as(wanted: str) -> bool:
        return bool(await outcome(api, id) == wanted)

    await rotate(issuer, gateway, api_of)  # that ends nothing which was begun in good faith
    assert await is_gone(anna), "a key that the issuer signs with no longer"
    await due("started")
    await answer(agent)
    await distrusted(gateway, distrust, issuer, tmp_path)
    await due("forbidden")
    marker = await api.start(agent.agent)
    assert (await agent.expect(Cmd)).id == marker, "nothing else has reached the agent"


@DISTRUST
async def test_nobody_joins_the_run_of_somebody_whose_issuer_or_key_is_gone(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent, issuer: Issuer, tmp_path: Path,
    distrust: Any,
) -> None:  # fmt: skip
    anna = as_caller(api_of, gateway, issuer.token())
    late = {**RUN, "late": True, "run_deadline": 600}
    run = (await anna.http.post("/v1/runs", json=late)).json()["id"]
    first = await dial(gateway)
    await first.greet()
    await answer(first)
    distrust(issuer, tmp_path / "issuers.toml")
    await until(lambda: is_gone(anna))
    other = (await api.http.post("/v1/runs", json=late)).json()["id"]  # the same node looks for both
    for targets in (2, 3):  # so it has looked for the first one in between
        agent = await dial(gateway)
        await agent.greet()
        await until(lambda: has_targets(api, other, targets))  # noqa: B023  # it is awaited here
    assert (await api.http.get(f"/v1/runs/{run}")).json()["targets"] == 1


async def has_targets(api: GatewayApi, run: str, count: int) -> bool:
    return bool((await api.http.get(f"/v1/runs/{run}")).json()["targets"] == count)


@DISTRUST
async def test_an_approval_by_somebody_whose_issuer_or_key_is_refused_is_worthless(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent, issuer: Issuer, tmp_path: Path,
    distrust: Any,
) -> None:  # fmt: skip
    agent = await dial(gateway)
    await agent.greet()
    made = await api.http.post("/v1/tokens", json={"name": "ci"})
    caller = as_caller(api_of, gateway, made.json()["token"])
    bert = as_caller(api_of, gateway, issuer.token(sub="bert"))

    async def approved(n: int) -> dict[str, Any]:
        body = {"agent": agent.agent, "method": "reboot", "payload": {"n": n}}
        asked = (await caller.http.post("/v1/commands", json=body)).json()["approval"]
        assert (await bert.http.post(f"/v1/approvals/{asked}/approve")).status_code == 204
        return {"json": body, "params": {"approval": asked}}

    first, second = await approved(1), await approved(2)
    await rotate(issuer, gateway, api_of)
    assert (await caller.http.post("/v1/commands", **first)).status_code == 202
    await distrusted(gateway, distrust, issuer, tmp_path)
    assert "may no longer do so" in denied(await caller.http.post("/v1/commands", **second))
