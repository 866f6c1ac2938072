"""The audit log of a real gateway: every decision is in it before it takes effect, or it does not take effect."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.app.api.openapi import document
from fairlead.audit.records import DRAINING, ENDED, ROLES_CHANGED, STARTED, STOPPED, AuditLine, Head
from fairlead.audit.segments import segments
from fairlead.audit.signed_head import SIGNED
from fairlead.audit.verification import read_lines, verify_folder
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.platform_api import FITTING, GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import caller_of, denied, write_roles
from support.gateway.scripted_agent import DialAgent
from support.otlp_collector import collecting

NOT_AUDITED = {"whoami", "canI", "getOpenapi"}
"""They decide nothing about the fleet."""
CONTENT = b"echo hello\n"
SCHEDULE = {
    "name": "nightly",
    "cron": "0 3 * * *",
    "run": {"method": "exec", "payload": FITTING["exec"], "selector": "*"},
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def audited(make: MakeGateway, redis: str, folder: Path, *flags: str) -> GatewayProcess:
    write_roles(folder / "roles.yaml")
    return make(redis, "--roles", str(folder / "roles.yaml"), "--audit-log", str(folder / "audit"), *flags)


def written(folder: Path) -> list[AuditLine]:
    """The lines of decisions."""
    return [line for line in read_lines(folder / "audit") if line.action not in (DRAINING, ENDED, STARTED, STOPPED)]


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
    assert (report.head.seq, report.faults) == (11, [])  # with two starts, a drain and a stop


async def ask(api: GatewayApi, method: str, path: str, body: object) -> int:
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    return (await api.http.request(method.upper(), path, **sent)).status_code


async def begun_run(api: GatewayApi, agent: str) -> str:
    answer = await api.http.post("/v1/runs", json={"agents": [agent], "method": "exec", "payload": FITTING["exec"]})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def ended_run(api: GatewayApi) -> str:
    """A run with a target that failed, which can be tried again."""
    run = await begun_run(api, "never-seen")
    async with asyncio.timeout(60):
        while (await api.http.get(f"/v1/runs/{run}")).json()["ended"] is None:
            await asyncio.sleep(0.05)
    return run


async def created_schedule(api: GatewayApi) -> str:
    answer = await api.http.post("/v1/schedules", json=SCHEDULE)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def ids_for(api: GatewayApi, agent: str) -> dict[str, str]:
    """What stands in the paths of the operations: something of each kind that exists, where one can be made."""
    return {
        "{agent}": agent, "{command}": await api.start(agent, "exec"), "{run}/retry": f"{await ended_run(api)}/retry",
        "{run}": await begun_run(api, agent), "{schedule}": await created_schedule(api), "{token}": "0" * 12,
        "{approval}": "0" * 16, "{group}": "readers", "{sink}": "siem", "{letter}": "1-0",
        "{digest}": hashlib.sha256(CONTENT).hexdigest(),
    }  # fmt: skip


def requests_for(ids: dict[str, str]) -> list[tuple[str, str, str, Any]]:
    """One allowed request for each operation of the document."""
    found, agent = [], ids["{agent}"]
    bodies = {
        "postCommand": {"agent": agent, "method": "exec", "payload": FITTING["exec"], "on_offline": {"queue": 60}},
        "postRun": {"agents": [agent], "method": "exec", "payload": FITTING["exec"]},
        "createToken": {"name": "looker"}, "createEnrolmentToken": {"agents": "*"},
        "approveAgent": {"key": "A" * 43, "token": "0" * 12}, "denyAgent": {"key": "A" * 43, "token": "0" * 12},
        "labelAgent": {"labels": {}}, "retryRun": {},
        "acknowledgeEvents": {"offsets": ["1-0"]}, "retryDeadLetters": {"ids": ["1-0"]}, "putContent": CONTENT,
        "createSchedule": SCHEDULE,
    }  # fmt: skip
    for path, methods in json.loads(document())["paths"].items():
        filled = path
        for name, id in ids.items():
            filled = filled.replace(name, id)
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
    for name, method, path, body in requests_for(await ids_for(admin, agent.agent)):
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
    ids = await ids_for(admin, agent.agent)
    command = ids["{command}"]
    lost = tmp_path / "lost"
    (tmp_path / "audit").rename(lost)
    async with asyncio.timeout(60):  # until the file is full
        while (answer := await admin.http.get(f"/v1/commands/{command}")).status_code != 503:
            await asyncio.gather(*(admin.http.get(f"/v1/commands/{command}") for _ in range(50)))
    assert answer.json()["code"] == "audit_unavailable"
    assert "cannot be written (No such file or directory), so nothing is done that must be in it" in answer.text
    for name, method, one, body in requests_for(ids):
        status = await ask(admin, method, one, body)
        assert (status == 503) is (name not in NOT_AUDITED), (name, status)
    lost.rename(tmp_path / "audit")
    assert (await admin.http.get("/v1/agents")).status_code == 200
    assert (await admin.agent(agent.agent))["state"] == "online"
    assert [fault for report in verify_folder(tmp_path / "audit") for fault in report.faults] == []


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return fairlead("audit", *args)


def fairlead(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", *args],
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
    assert (whole.returncode, whole.stdout.startswith("node-1: lines 1 to 4 are whole; head 4:")) == (0, True)
    head = whole.stdout.split()[-1]
    assert run("verify", folder, "--head", head).returncode == 0
    assert run("verify", folder, "--head", "4:" + "0" * 64).returncode == 1
    assert run("verify", folder, "--head", "3").returncode == 2
    assert run("verify", str(tmp_path)).returncode == 2
    listed = run("ls", folder).stdout.splitlines()
    assert listed[0].split() == ["TIME", "SUBJECT", "ACTION", "WHAT", "WHOM", "OUTCOME"]
    assert [line.split()[1:3] for line in listed[1:]] == [
        ["node", "nodeStarted"], ["shared-token", "createToken"], ["token:looker", "listAgents"],
        ["token:looker", "getAgent"],
    ]  # fmt: skip
    by_method = run("ls", folder, "--method", "exec", "-o", "name"), run("ls", folder, "--until", "2026", "-o", "name")
    assert [one.stdout for one in by_method] == ["", ""]
    only = json.loads(run("ls", folder, "--outcome", "denied", "--agent", "web-9", "-o", "json").stdout)["lines"]
    assert [(line["seq"], line["action"], line["outcome"]) for line in only] == [(4, "getAgent", "denied")]
    assert run("ls", folder, "--since", "9999", "-o", "name").stdout == ""
    (path,) = segments(tmp_path / "audit")["node-1"]
    path.write_bytes(path.read_bytes().replace(b"token:looker", b"token:nobody", 1))
    broken = run("verify", folder)
    assert broken.returncode == 1
    assert f"{path}:3: its hash is not that of its content, so it was changed" in broken.stderr


async def test_what_runs_is_named_by_its_digests(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    """Also when a run is tried again, whose payload its caller does not send; and the content that agents get."""
    api = api_of(audited(make_gateway, own_valkey.url, tmp_path))
    digest = hashlib.sha256(CONTENT).hexdigest()
    payload = {"digest": digest, "size": len(CONTENT)}
    assert (await api.http.put(f"/v1/contents/{digest}", content=CONTENT)).status_code == 200
    body = {"method": "script", "content": digest, "payload": payload}
    queued = await api.http.post("/v1/commands", json={**body, "agent": "never-seen"})
    assert queued.status_code == 404, "no agent, and no less a decision"
    run = (await api.http.post("/v1/runs", json={**body, "agents": ["never-seen"]})).json()["id"]
    async with asyncio.timeout(60):
        while (await api.http.get(f"/v1/runs/{run}")).json()["ended"] is None:
            await asyncio.sleep(0.05)
    assert (await api.http.post(f"/v1/runs/{run}/retry", json={})).status_code == 202
    nightly = {**SCHEDULE, "run": {**body, "selector": "*"}}
    assert (await api.http.post("/v1/schedules", json=nightly)).status_code == 201
    sent = json.dumps(payload, separators=(",", ":")).encode()
    actions = ["postCommand", "postRun", "retryRun", "createSchedule"]
    lines = [line for line in written(tmp_path) if line.action in actions]
    assert [(line.action, line.digest, line.content) for line in lines] == [
        (action, hashlib.sha256(sent).hexdigest(), digest) for action in actions
    ]


@pytest.mark.parametrize("more", [{}, {"unchecked": True}])
async def test_no_line_names_another_content_than_the_one_that_runs(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path, more: dict[str, bool]
) -> None:
    """An agent runs a script that it has kept, by the digest in the payload; the named one it need not ask for."""
    api = api_of(audited(make_gateway, own_valkey.url, tmp_path))
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (await api.http.put(f"/v1/contents/{digest}", content=CONTENT)).status_code == 200
    body = {"method": "script", "content": digest, "payload": {"digest": "1" * 64, "size": 1}, **more}
    for path, whom in (
        ("commands", {"agent": "web-1"}),
        ("runs", {"agents": ["web-1"]}),
        ("schedules", {**SCHEDULE, "run": {**body, "selector": "*"}}),
    ):
        answer = await api.http.post(f"/v1/{path}", json=whom if "run" in whom else {**body, **whom})
        assert (answer.status_code, answer.json().get("field")) == (422, "content"), answer.text
    assert [line for line in written(tmp_path) if line.content] == []


async def test_a_post_can_be_matched_with_its_command_and_its_end(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    agent = await dial(gateway)
    await agent.greet()
    ci = await caller_of(api_of, gateway, "all")
    token = str(ci.http.headers["authorization"]).split("_")[1]
    body = {"agent": agent.agent, "method": "exec"}
    first = await ci.post(body, **{"idempotency-key": "a-key"})
    again = await ci.post(body, **{"idempotency-key": "a-key"})
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (first.json()["id"], "true")
    sent = await agent.expect(Cmd)
    await agent.send(Ack(id=sent.id), End(id=sent.id, total=0))
    run = (
        await ci.http.post("/v1/runs", json={"agents": [agent.agent], "method": "exec", "payload": FITTING["exec"]})
    ).json()["id"]
    of_run = await agent.expect(Cmd)
    await agent.send(Ack(id=of_run.id), End(id=of_run.id, total=0))
    async with asyncio.timeout(30):
        while len(ends := [line for line in read_lines(tmp_path / "audit") if line.action == ENDED]) < 2:
            await asyncio.sleep(0.02)
    posts = [line for line in written(tmp_path) if line.action == "postCommand"]
    assert [(line.command, line.credential) for line in posts] == [(first.json()["id"], token)] * 2
    (begun,) = [line for line in written(tmp_path) if line.action == "postRun"]
    assert (begun.run, begun.count) == (run, 1)
    assert [(line.command, line.agent, line.outcome, line.subject) for line in ends] == [
        (sent.id, agent.agent, "ok", "node"), (of_run.id, agent.agent, "ok", "node"),
    ]  # fmt: skip


async def test_a_node_that_starts_stops_or_reads_other_roles_says_so(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, tmp_path: Path
) -> None:
    """Whoever has other roles hold for a while cannot hide it."""
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    file = tmp_path / "roles.yaml"
    before = file.read_bytes()
    other = before + b"  - {tokens: [intruder], roles: [all]}\n"
    write_roles(file, other.decode())
    async with asyncio.timeout(30):
        while ROLES_CHANGED not in [line.action for line in read_lines(tmp_path / "audit")]:
            await asyncio.sleep(0.05)
    gateway.stop()
    gateway.start()
    found = [(line.action, line.digest) for line in read_lines(tmp_path / "audit")]
    first, second = (hashlib.sha256(octets).hexdigest() for octets in (before, other))
    assert found == [(STARTED, first), (ROLES_CHANGED, second), (DRAINING, ""), (STOPPED, ""), (STARTED, second)]


async def test_on_a_full_disk_nothing_is_done_that_must_be_in_the_log(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent, tmp_path: Path
) -> None:
    """The limit of the size of a file stands for the disk: the kernel refuses the write in the middle of a line."""
    gateway = audited(make_gateway, own_valkey.url, tmp_path)
    admin = api_of(gateway)
    agent = await dial(gateway)
    await agent.greet()
    ids = await ids_for(admin, agent.agent)
    for _ in range(2):
        await agent.expect(Cmd)
    (path,) = segments(tmp_path / "audit")["node-1"]
    free = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 100, free[1]))
    for name, method, one, body in requests_for(ids):
        status = await ask(admin, method, one, body)
        assert (status == 503) is (name not in NOT_AUDITED), (name, status)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, free)
    later = await admin.start(agent.agent, "exec")
    assert (await agent.expect(Cmd)).id == later  # and of what was refused nothing has reached the agent
    assert [fault for report in verify_folder(tmp_path / "audit") for fault in report.faults] == []
    assert "cannot be written (only 100 of " in gateway.log()


async def test_signed_heads_and_the_export_prove_that_nothing_was_cut_off(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> None:
    public = tmp_path / "audit.pem.pub"
    assert fairlead("keys", "generate", str(tmp_path / "audit.pem")).returncode == 0
    with collecting() as collector:
        gateway = audited(
            make_gateway, own_valkey.url, tmp_path, "--audit-key", str(tmp_path / "audit.pem"),
            "--audit-head-interval", "1", "--audit-endpoint", collector.url,
        )  # fmt: skip
        looker = await caller_of(api_of, gateway, "looker")
        await looker.http.get("/v1/agents")
        async with asyncio.timeout(60):  # the first head is signed in time, not at the end
            while "fairlead-audit-head/1 node=node-1" not in gateway.log():
                await asyncio.sleep(0.05)
        denied(await looker.http.get("/v1/agents/web-9"))
        gateway.stop()
        exported = "\n".join(record.body for record in collector.records)
    log = tmp_path / "kept-elsewhere.log"
    log.write_text(gateway.log())
    (tmp_path / "exported.jsonl").write_text(exported)
    folder, key = str(tmp_path / "audit"), ("--public-key", str(public))
    whole = run("verify", folder, *key, "--heads", str(log), "--heads", str(tmp_path / "exported.jsonl"))
    assert whole.returncode == 0, whole.stderr
    lines = list(read_lines(tmp_path / "audit"))
    assert f"node-1: lines 1 to {len(lines)} are whole" in whole.stdout
    assert f"node-1: signed up to line {len(lines) - 1} at " in whole.stdout
    assert "; nothing follows it" in whole.stdout
    (path,) = segments(tmp_path / "audit")["node-1"]
    assert exported.encode() + b"\n" == path.read_bytes()
    # Whoever holds the folder cuts the log off behind an earlier head, and nothing in the folder shows it.
    signed = next(line for line in lines if line.action == SIGNED)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: signed.seq]))
    (tmp_path / "audit" / "node-1.head").write_bytes(Head(signed.seq, signed.hash).padded())
    assert run("verify", folder, *key).returncode == 0
    for kept in (log, tmp_path / "exported.jsonl"):
        cut = run("verify", folder, *key, "--heads", str(kept))
        assert cut.returncode == 1
        assert f"ends with line {signed.seq} of the log, but a signed head that was kept elsewhere says" in cut.stderr
    assert run("verify", folder, "--heads", str(log)).returncode == 2
    assert run("verify", folder, *key, "--heads", str(public)).returncode == 2


async def test_a_key_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    for flags, expected in (
        (("--audit-key", str(tmp_path / "none")), "no audit log is written"),
        (("--audit-log", str(tmp_path / "a"), "--audit-key", str(tmp_path / "none")), "cannot be read"),
    ):
        failed = fairlead("serve", "--data", str(tmp_path / "data"), "--link-port", "0", *flags)
        assert failed.returncode != 0
        assert expected in failed.stderr
