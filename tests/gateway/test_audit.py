"""The audit log of a real gateway: every decision is in it before it takes effect, or it does not take effect."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairlead.app.api.openapi import document
from fairlead.audit.records import AuditLine
from fairlead.audit.segments import segments
from fairlead.audit.verification import read_lines, verify_folder
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Cmd

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import caller_of, denied, write_roles
from support.gateway.scripted_agent import DialAgent

NOT_AUDITED = {"whoami", "canI", "getOpenapi"}
"""They decide nothing about the fleet."""
TRACE = "0af7651916cd43dd8448eb211c80319c"


def audited(make: MakeGateway, redis: str, folder: Path, *flags: str) -> GatewayProcess:
    write_roles(folder / "roles.yaml")
    return make(redis, "--roles", str(folder / "roles.yaml"), "--audit-log", str(folder / "audit"), *flags)


def written(folder: Path) -> list[AuditLine]:
    return list(read_lines(folder / "audit"))


async def test_who_did_what_to_whom_and_who_was_denied(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    admin = api_of(gateway)
    agent = await dial(gateway)
    await agent.greet()
    await admin.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "dev"}})
    ci = await caller_of(api_of, gateway, "ci")
    payload = {"argv": ["echo", "a secret"]}
    body = {"agent": agent.agent, "method": "exec", "payload": payload}
    posted = await ci.post(body, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    assert posted.status_code == 202
    reason = denied(await ci.post({"agent": agent.agent, "method": "shell"}))
    no_trace = {"traceparent": f"00-{'z' * 32}-b7ad6b7169203331-01"}
    await ci.http.get("/v1/agents", params={"selector": "env=dev"}, headers=no_trace)
    denied(await ci.http.delete(f"/v1/agents/{agent.agent}"))
    label, create, post, shell, listed, delete = written(tmp_path)
    assert (label.subject, label.issuer, label.action, label.outcome) == (
        "shared-token", "shared-token", "labelAgent", "allowed",
    )  # fmt: skip
    assert (label.agent, label.detail) == (agent.agent, '{"env":"dev"}')
    assert (create.action, create.detail.split()[0]) == ("createToken", "ci")
    assert (post.subject, post.issuer, post.method, post.agent) == ("token:ci", "service-token", "exec", agent.agent)
    sent = await agent.expect(Cmd)
    assert post.digest == hashlib.sha256(bytes(sent.payload)).hexdigest()
    assert post.trace == TRACE
    assert (shell.outcome, shell.method, shell.agent, shell.reason) == ("denied", "shell", agent.agent, reason)
    assert (listed.action, listed.selector, listed.count) == ("listAgents", "env=dev", 1)
    assert listed.trace == ""
    assert (delete.action, delete.outcome, delete.agent) == ("deleteAgent", "denied", agent.agent)
    raw = b"".join(path.read_bytes() for path in segments(tmp_path / "audit")["node-1"])
    assert b"a secret" not in raw
    assert str(ci.http.headers["authorization"]).rpartition("_")[2].encode() not in raw
    gateway.stop()
    gateway.start()
    await admin.http.get("/v1/agents")
    (report,) = verify_folder(tmp_path / "audit")
    assert (report.head.seq, report.faults) == (7, [])


async def ask(api: GatewayApi, method: str, path: str, body: object) -> int:
    return (await api.http.request(method.upper(), path, json=body)).status_code


async def begun_run(api: GatewayApi, agent: str) -> str:
    answer = await api.http.post("/v1/runs", json={"agents": [agent], "method": "exec"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def requests_for(agent: str, command: str, run: str) -> list[tuple[str, str, str, Any]]:
    """One allowed request for each operation of the document."""
    found = []
    bodies = {
        "postCommand": {"agent": agent, "method": "exec", "on_offline": {"queue": 60}},
        "postRun": {"agents": [agent], "method": "exec"},
        "createToken": {"name": "looker"}, "createEnrolmentToken": {"agents": "*"},
        "approveAgent": {"key": "A" * 43, "token": "0" * 12}, "denyAgent": {"key": "A" * 43, "token": "0" * 12},
        "labelAgent": {"labels": {}},
    }  # fmt: skip
    for path, methods in json.loads(document())["paths"].items():
        filled = (
            path.replace("{command}", command)
            .replace("{run}", run)
            .replace("{agent}", agent)
            .replace("{token}", "0" * 12)
        )
        query = "?method=exec" if filled.endswith("can-i") else ""
        for method, one in methods.items():
            found.append((one["operationId"], method, filled + query, bodies.get(one["operationId"])))
    return sorted(found, key=lambda one: one[0] == "deleteAgent")  # the last one, as nothing is left after it


async def test_no_operation_is_left_out_and_none_works_without_its_log(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    admin = api_of(gateway)
    agent = await dial(gateway)
    await agent.greet()
    command, run = await admin.start(agent.agent, "exec"), await begun_run(admin, agent.agent)
    for name, method, path, body in requests_for(agent.agent, command, run):
        if name == "deleteAgent":
            await agent.socket.close()
        before = len(written(tmp_path))
        status = await ask(admin, method, path, body)
        assert status != 503, name
        lines = written(tmp_path)[before:]
        assert [line.action for line in lines] == ([] if name in NOT_AUDITED else [name]), (name, status)
    # From now on the log cannot be written: its folder is gone, and the next file is due.
    gateway.stop()
    (tmp_path / "audit").rename(tmp_path / "old")
    full = audited(make_gateway, own_valkey.url, tmp_path, "--audit-size", "65536")
    admin = api_of(full)
    agent = await dial(full)
    await agent.greet()
    command, run = await admin.start(agent.agent, "exec"), await begun_run(admin, agent.agent)
    lost = tmp_path / "lost"
    (tmp_path / "audit").rename(lost)
    async with asyncio.timeout(60):  # until the file is full
        while (answer := await admin.http.get(f"/v1/commands/{command}")).status_code != 503:
            await asyncio.gather(*(admin.http.get(f"/v1/commands/{command}") for _ in range(50)))
    assert answer.json()["code"] == "audit_unavailable"
    assert "cannot be written (No such file or directory), so nothing is done that must be in it" in answer.text
    for name, method, one, body in requests_for(agent.agent, command, run):
        status = await ask(admin, method, one, body)
        assert (status == 503) is (name not in NOT_AUDITED), (name, status)
    lost.rename(tmp_path / "audit")
    assert (await admin.http.get("/v1/agents")).status_code == 200
    assert (await admin.agent(agent.agent))["state"] == "online"
    assert [fault for report in verify_folder(tmp_path / "audit") for fault in report.faults] == []


def run(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", "audit", *args],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip


async def test_the_command_line_shows_and_verifies_the_log(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    gateway = audited(make_gateway, own_valkey.url, tmp_path, "--audit-fsync", "always")
    looker = await caller_of(api_of, gateway, "looker")
    await looker.http.get("/v1/agents")
    denied(await looker.http.get("/v1/agents/web-9"))
    folder = str(tmp_path / "audit")
    whole = run("verify", folder)
    assert (whole.returncode, whole.stdout.startswith("node-1: lines 1 to 3 are whole; head 3:")) == (0, True)
    head = whole.stdout.split()[-1]
    assert run("verify", folder, "--head", head).returncode == 0
    assert run("verify", folder, "--head", "3:" + "0" * 64).returncode == 1
    assert run("verify", folder, "--head", "3").returncode == 2
    assert run("verify", str(tmp_path)).returncode == 2
    listed = run("ls", folder).stdout.splitlines()
    assert listed[0].split() == ["TIME", "SUBJECT", "ACTION", "WHAT", "WHOM", "OUTCOME"]
    assert [line.split()[1:3] for line in listed[1:]] == [
        ["shared-token", "createToken"], ["token:looker", "listAgents"], ["token:looker", "getAgent"],
    ]  # fmt: skip
    only = json.loads(run("ls", folder, "--outcome", "denied", "--agent", "web-9", "-o", "json").stdout)["lines"]
    assert [(line["seq"], line["action"], line["outcome"]) for line in only] == [(3, "getAgent", "denied")]
    assert run("ls", folder, "--since", "9999", "-o", "name").stdout == ""
    (path,) = segments(tmp_path / "audit")["node-1"]
    path.write_bytes(path.read_bytes().replace(b"token:looker", b"token:nobody", 1))
    broken = run("verify", folder)
    assert broken.returncode == 1
    assert f"{path}:2: its hash is not that of its content, so it was changed" in broken.stderr
