"""Every kind of stream ends, and says why, when its reader's token is revoked or no role is bound to it any more:
results of a run and of a command, events, and events of a group."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.roles import as_caller, write_roles
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

ROLES = """\
roles:
  all:
    - methods: ["*"]
      verbs: ["*"]
      agents: "*"
bindings:
  - {tokens: [ci], roles: [all]}
"""


async def last_line(api: GatewayApi, path: str, begun: list[str]) -> tuple[str, str]:
    """The code of the error with which a stream ends."""
    headers = {"accept": "application/x-ndjson"}
    async with api.http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        begun.append(path)
        lines = [line async for line in answer.aiter_lines() if line]
    return path, json.loads(lines[-1])["error"]["code"]


@pytest.mark.parametrize(("lost", "code"), [("token", "unauthorized"), ("role", "permission_denied")])
async def test_each_stream_ends_with_the_right_to_read_it(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path,
    lost: str, code: str,
) -> None:  # fmt: skip
    write_roles(tmp_path / "roles.yaml", ROLES)
    node = make_gateway(own_valkey.url, "--roles", str(tmp_path / "roles.yaml"))
    admin, agent = api_of(node), await dial(node)
    await agent.greet()
    made = (await admin.http.post("/v1/tokens", json={"name": "ci"})).json()
    ci = as_caller(api_of, node, made["token"])
    body = {"method": "work", "agents": [agent.agent], "deadline": 600}
    run, command = (await ci.http.post("/v1/runs", json=body)).json()["id"], await ci.start(agent.agent)
    paths = [
        f"/v1/runs/{run}/results?follow=true", f"/v1/commands/{command}/results?follow=true",
        "/v1/events?follow=true", "/v1/events?follow=true&group=readers",
    ]  # fmt: skip
    begun: list[str] = []
    streams = [asyncio.create_task(last_line(ci, path, begun)) for path in paths]
    await until(lambda: len(begun) == len(paths))
    if lost == "token":
        assert (await admin.http.delete(f"/v1/tokens/{made['id']}")).status_code == 204
    else:
        write_roles(tmp_path / "roles.yaml", ROLES.replace("[ci]", "[other]"))
    async with asyncio.timeout(60):
        assert await asyncio.gather(*streams) == [(path, code) for path in paths]
