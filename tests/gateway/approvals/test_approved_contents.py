"""Whoever approves a script or a file sees its text, and not only its digest."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.audit.verification import read_lines
from fairlead.fleet.contents.content_store import content_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import integer

from support.cli.processes import environment
from support.cli.terminal import Screen
from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import write_roles
from support.gateway.scripted_agent import ScriptedAgent
from support.gateway.second_person import ROLES, People, decide, fairlead, required
from support.oidc.issuer import Issuer
from support.waiting import until

SCRIPT = b"#!/bin/sh\nif true; then\n\trm -rf /srv/old\x1b[2K\nfi\n"
HOUR_MS = 3600_000


def body(agent: str, content: bytes, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    payload = {"path": "/srv/clean.sh", "content": True, "sha256": digest, **more}
    return {"agent": agent, "method": "file.put", "payload": payload, "content": digest}


async def asked(api: GatewayApi, agent: str, content: bytes, **more: Any) -> httpx2.Response:
    wanted = body(agent, content, **more)
    stored = await api.http.put(f"/v1/contents/{wanted['content']}", content=content)
    assert stored.status_code == 200, stored.text
    return await api.http.post("/v1/commands", json=wanted)


def shown_on_terminal(line: list[str], env: dict[str, str]) -> str:
    screen = Screen(line, env)
    try:
        return screen.end()
    finally:
        screen.close()


async def test_the_approver_sees_the_text_that_would_be_sent(
    people: People, agent: ScriptedAgent, redis_of: RedisOf, own_valkey: EmbeddedValkey
) -> None:
    approval, digest = required(await asked(people.anna, agent.agent, SCRIPT)), hashlib.sha256(SCRIPT).hexdigest()
    shown = (await people.bert.http.get(f"/v1/approvals/{approval}")).json()
    assert (shown["content"], shown["content_text"]) == (digest, SCRIPT.decode())
    (listed,) = (await people.bert.http.get("/v1/approvals")).json()["approvals"]
    assert (listed["content"], listed["content_text"]) == (digest, None)
    own = (await people.anna.http.get(f"/v1/approvals/{approval}")).json()
    assert (own["content"], own["content_text"]) == (digest, None), "nobody reads a content back that they only name"
    left = integer(await (await redis_of(own_valkey)).submit("PTTL", content_key(digest)))
    assert left > 1.9 * HOUR_MS, "it can be looked at and started until the request expires, an hour after it was made"


async def test_the_audit_log_says_which_content_was_approved(
    people: People, agent: ScriptedAgent, tmp_path: Path
) -> None:
    approval = required(await asked(people.anna, agent.agent, SCRIPT))
    assert (await decide(people.bert, approval)).status_code == 204
    (line,) = [one for one in read_lines(tmp_path / "audit") if one.action == "approveRequest"]
    assert line.content == hashlib.sha256(SCRIPT).hexdigest()


@pytest.mark.parametrize("content", [b"\x7fELF\xff\x00", b"#" * (64 << 10) + b"\n"], ids=["program", "large"])
async def test_what_nobody_can_read_is_named_by_its_digest(
    people: People, agent: ScriptedAgent, content: bytes, issuer: Issuer, gateway: GatewayProcess
) -> None:
    approval = required(await asked(people.anna, agent.agent, content))
    shown = (await people.bert.http.get(f"/v1/approvals/{approval}")).json()
    assert (shown["content"], shown["content_text"]) == (hashlib.sha256(content).hexdigest(), None)
    told = await asyncio.to_thread(fairlead, gateway, issuer.token(sub="bert"), "approvals", "show", approval)
    assert "content: not shown, because it is no text, too large or gone" in told.stdout


async def test_a_content_that_is_gone_is_told_before_anybody_approves(people: People, agent: ScriptedAgent) -> None:
    answer = await people.anna.http.post("/v1/commands", json=body(agent.agent, b"never stored"))
    assert (answer.status_code, answer.json()["field"]) == (422, "content")


async def test_the_command_line_shows_all_of_it_on_a_narrow_terminal(
    people: People, agent: ScriptedAgent, gateway: GatewayProcess, issuer: Issuer
) -> None:
    """What is left out cannot be approved with open eyes; what would steer the terminal is replaced."""
    approval = required(await asked(people.anna, agent.agent, SCRIPT, path="/srv/" + "long/" * 40 + "clean.sh"))
    env = {**environment(gateway.api), "FAIRLEAD_TOKEN": issuer.token(sub="bert")}
    line = [sys.executable, "-P", "-m", "fairlead", "approvals", "show", approval]
    text = (await asyncio.to_thread(shown_on_terminal, line, env)).replace("\r\n", "\n")
    assert "/srv/" + "long/" * 40 + "clean.sh" in text
    assert "content:\n  #!/bin/sh\n  if true; then\n          rm -rf /srv/old?[2K\n  fi\n" in text
    piped = await asyncio.to_thread(subprocess.run, line, env=env, capture_output=True, text=True, check=False)
    assert "rm -rf /srv/old?[2K" in piped.stdout


@pytest.mark.parametrize("more", [{}, {"unchecked": True}])
async def test_another_script_than_the_one_that_would_run_is_not_shown_for_it(
    people: People, agent: ScriptedAgent, tmp_path: Path, more: dict[str, Any]
) -> None:
    """An agent runs a script that it has kept without asking for the content that the command names."""
    write_roles(tmp_path / "roles.yaml", ROLES.replace('exec, "file.*"', 'exec, script, "file.*"'))

    async def marked() -> bool:
        rules = (await people.anna.http.get("/v1/auth/whoami")).json()["approvals"]
        return any("script" in rule["methods"] for rule in rules)

    await until(marked)
    shown, kept = (hashlib.sha256(data).hexdigest() for data in (SCRIPT, b"rm -rf /"))
    assert (await people.anna.http.put(f"/v1/contents/{shown}", content=SCRIPT)).status_code == 200
    order = {"method": "script", "payload": {"digest": kept, "size": 8}, **more}
    for content in ({"content": shown}, {}):
        for path, whom in (("commands", {"agent": agent.agent}), ("runs", {"agents": [agent.agent]})):
            answer = await people.anna.http.post(f"/v1/{path}", json={**order, **whom, **content})
            assert (answer.status_code, answer.json()["field"]) == (422, "content"), answer.text
    own = {**order, "agent": agent.agent, "payload": {"digest": shown, "size": len(SCRIPT)}, "content": shown}
    required(await people.anna.http.post("/v1/commands", json=own))
