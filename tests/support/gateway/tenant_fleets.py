"""Tenants on one gateway, for tests: callers of each, and a fleet with everything that a fleet can have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from fairlead.identity.agent_key import AgentKey
from fairlead.identity.proof import enrolment_statement, prove
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import Ack, Chunk, Cmd, End, Event

from support.gateway.identity_site import IdentitySite, new_key
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import ScriptedAgent
from support.waiting import until

ATTACKER, VICTIM = "acme", "globex"
HEADER = "fairlead-tenant"
ROLES = """\
roles:
  all:
    - methods: ["*"]
      verbs: ["*"]
      agents: "*"
    - gateway: [tokens, enrolment, nodes, tenants, approve]
approvals:
  - {methods: [marked], agents: "*", approvers: [all]}
tenants:
  acme: {}
  globex: {}
bindings:
  - {tenant: acme, tokens: [boss], roles: [all]}
  - {tenant: globex, tokens: [boss, secret-token-name], roles: [all]}
  - {tokens: [boss], roles: [all]}
"""


@dataclass
class TenantFleet:
    """What a tenant has. `boss` may do everything in it; `secrets` are words that nobody else may ever read."""

    tenant: str
    site: IdentitySite
    boss: GatewayApi
    keys: dict[str, AgentKey] = field(default_factory=dict)
    agents: dict[str, ScriptedAgent] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    enrolment_tokens: list[str] = field(default_factory=list)
    approvals: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    """Of the events that its groups `secret-group` and `readers` have not acknowledged."""
    letters: list[str] = field(default_factory=list)
    """Of what its sink `secret-sink` could not deliver, if it has one."""
    pending: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    async def enrolment_token(self, **more: object) -> tuple[str, str]:
        """The id and the text of a new one."""
        made = await self.boss.http.post("/v1/enrolment-tokens", json={"agents": "*", "uses": 100, **more})
        assert made.status_code == 201, made.text
        return made.json()["id"], made.json()["token"]

    async def enrol(self, agent: str, token: str = "") -> httpx2.Response:
        self.keys[agent] = key = self.keys.get(agent) or new_key()
        id, text = (token.split("_")[2], token) if token else await self.enrolment_token()
        self.enrolment_tokens.append(id)
        return await self.site.enrol(agent, key, text)

    async def link(self, agent: str, conn: int = 1) -> ScriptedAgent:
        if agent not in self.credentials:
            answer = await self.enrol(agent)
            assert answer.status_code == 201, answer.text
            self.credentials[agent] = answer.json()["credential"]
        self.agents[agent] = await self.site.link(agent, self.credentials[agent], self.keys[agent], conn)
        return self.agents[agent]

    async def dead_letters(self) -> list[str]:
        """The ids of what its sink `secret-sink` could not deliver."""
        answer = await self.boss.http.get("/v1/event-sinks/secret-sink/dead-letters")
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["dead_letters"]]

    async def state(self) -> dict[str, Any]:
        """Everything of the tenant that its administrator can see, without what changes by itself."""
        found: dict[str, Any] = {}
        for path in (
            "agents", "tokens", "enrolment-tokens", "pending-agents", "approvals", "schedules", "events",
            "event-groups",
        ):  # fmt: skip
            answer = await self.boss.http.get(f"/v1/{path}")
            assert answer.status_code == 200, answer.text
            found[path] = answer.text if path == "events" else _steady(answer.json())
        if self.letters:
            found["dead letters"] = await self.dead_letters()
        for agent in self.agents:
            found[agent] = _steady((await self.boss.http.get(f"/v1/agents/{agent}")).json())
        for command in self.commands:
            found[command] = await self.boss.get(command)
            found[f"{command} results"] = await self.boss.lines(command, follow=False)
        for run in self.runs:
            found[run] = (await self.boss.http.get(f"/v1/runs/{run}")).json()
        return found


def _steady(document: Any) -> Any:
    """A document without the times of last uses and round trips."""
    if isinstance(document, dict):
        return {name: _steady(value) for name, value in document.items() if name not in ("used", "last_used", "rtt")}
    return [_steady(one) for one in document] if isinstance(document, list) else document


async def found_fleet(tenant: str, node: GatewayProcess, store: Pipeliner, api_of: MakeGatewayApi) -> TenantFleet:
    """A tenant without agents, and its administrator with a service token."""
    platform = api_of(node)
    made = await platform.http.post("/v1/tokens", json={"name": "boss"}, headers={HEADER: tenant} if tenant else {})
    assert made.status_code == 201, made.text
    boss = api_of(node)
    boss.http.headers["authorization"] = f"Bearer {made.json()['token']}"
    return TenantFleet(tenant, IdentitySite(node, store), boss)


async def fill(fleet: TenantFleet) -> None:
    """Give a tenant agents, labels, events, commands that run and have ended, a terminal, a run, tokens, and an agent
    that waits for an approval."""
    boss = fleet.boss
    for agent in ("web-1", "only-here"):
        linked = await fleet.link(agent)
        await linked.send(Event(type="secret.kind", id=f"secret-event-{agent}", payload=b'"secret-payload"', time=1))
        answer = await boss.http.patch(f"/v1/agents/{agent}", json={"labels": {"secret-label": "secret-value"}})
        assert answer.status_code == 200, answer.text

    async def events_stored() -> bool:
        return (await boss.http.get("/v1/events")).text.count("secret-event") == 2

    await until(events_stored)
    for group in ("secret-group", "readers"):
        taken = await boss.http.get(f"/v1/events?group={group}&selector=secret-label&ack_within=3600")
        fleet.offsets = [json.loads(line)["offset"] for line in taken.text.splitlines()]
        assert len(fleet.offsets) == 2
    peer = fleet.agents["only-here"]
    for method, key, ends in (
        ("secret-method", "secret-key", True),
        ("secret-method", "", False),
        ("shell", "", False),
    ):
        headers = {"idempotency-key": key} if key else {}
        made = await boss.post({"agent": "only-here", "method": method, "deadline": 3000}, **headers)
        assert made.status_code == 202, made.text
        command = (await peer.expect(Cmd)).id
        assert command == made.json()["id"]
        fleet.commands.append(command)
        await peer.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"secret-output"))
        if ends:
            await peer.send(End(id=command, total=1, payload=b'"secret-result"'))
            await boss.end(command)
    run = await boss.http.post("/v1/runs", json={"agents": ["only-here"], "method": "secret-method", "deadline": 3000})
    assert run.status_code == 202, run.text
    fleet.runs.append(run.json()["id"])
    target = (await peer.expect(Cmd)).id
    fleet.commands.append(target)
    await peer.send(Ack(id=target))
    body = {"name": "secret-schedule", "cron": "0 0 1 1 *", "run": {"method": "secret-method", "selector": "*"}}
    scheduled = await boss.http.post("/v1/schedules", json=body)
    assert scheduled.status_code == 201, scheduled.text
    fleet.schedules.append(scheduled.json()["id"])
    made = await boss.http.post("/v1/tokens", json={"name": "secret-token-name"})
    assert made.status_code == 201, made.text
    fleet.tokens.append(made.json()["id"])
    await _ask_approval(fleet)
    await _ask_second_person(fleet)
    fleet.secrets = {
        "only-here", "waits-here", "secret-", f"/{fleet.tenant}/", *fleet.commands, *fleet.runs, *fleet.tokens,
        *fleet.enrolment_tokens, *fleet.approvals, *fleet.schedules,
    }  # fmt: skip

    async def settled() -> bool:
        return bool((await boss.get(target))["state"] == "running")

    await until(settled)


async def _ask_approval(fleet: TenantFleet) -> None:
    id, text = await fleet.enrolment_token(approval=True)
    fleet.enrolment_tokens.append(id)
    key = fleet.keys["waits-here"] = new_key()
    prove(key, enrolment_statement(id, "waits-here", key.public))
    answer = await fleet.site.enrol("waits-here", key, text)
    assert answer.status_code == 202, answer.text
    (waiting,) = (await fleet.boss.http.get("/v1/pending-agents")).json()["agents"]
    fleet.pending.append(("waits-here", {"key": waiting["key"], "token": id}))


async def _ask_second_person(fleet: TenantFleet) -> None:
    answer = await fleet.boss.post({"agent": "only-here", "method": "marked"})
    assert answer.status_code == 403, answer.text
    fleet.approvals.append(answer.json()["approval"])


def write_tenants(path: Path, text: str = ROLES) -> Path:
    path.write_text(text)
    return path


def shown(answer: httpx2.Response) -> str:
    """The headers and the body of an answer, without what differs between two answers with the same content."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    return json.dumps(headers) + answer.text
