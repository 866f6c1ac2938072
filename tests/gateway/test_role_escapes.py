"""Ways around a role that lets its caller run `exec` and `file.*` on `env=dev`: by the words of a selector, by another
spelling of a method, by asking for many agents at once. Every one of them reaches nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.role_escapes import ALLOWED, METHODS, SELECTORS, agent_lists
from support.gateway.roles import caller_of, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("role-escapes")
    write_roles(folder / "roles.yaml")
    process = GatewayProcess(folder, shared_valkey.url, ("--roles", str(folder / "roles.yaml")))
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def agents(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> tuple[ScriptedAgent, ScriptedAgent]:
    """The caller's own, and that of others, which says that it is the caller's."""
    own, other = await dial(gateway), await dial(gateway)
    for agent, env in ((own, "dev"), (other, "prod")):
        await agent.greet(facts={"env": "dev", "label.env": "dev", "id": "web"})
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": env}})
    return own, other


async def test_no_selector_reaches_whom_the_caller_may_not_use(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, agents: tuple[ScriptedAgent, ScriptedAgent]
) -> None:
    own, other = agents
    ci = await caller_of(api_of, gateway, "ci")
    reached, refused = 0, 0
    for selector in SELECTORS:
        dry = await ci.http.post("/v1/runs", json={"method": "exec", "selector": selector, "dry_run": True})
        assert dry.status_code in (200, 403, 422), (selector, dry.text)
        assert other.agent not in dry.text, selector
        reached += own.agent in dry.text
        refused += dry.status_code != 200
        listed = await ci.http.get("/v1/agents", params={"selector": selector})
        assert other.agent not in listed.text, selector
        events = await ci.http.get("/v1/events", params={"selector": selector})
        assert other.agent not in events.text, selector
        can = await ci.http.get("/v1/auth/can-i", params={"method": "exec", "selector": selector})
        if can.status_code == 200 and can.json()["allowed"]:
            # Yes means: on every agent that matches, so the administrator's own selection has no other one in it.
            seen = await api.http.get("/v1/agents", params={"selector": selector, "limit": "1000"})
            assert all(one["labels"].get("env") == "dev" for one in seen.json()["agents"]), selector
    assert reached >= 3, "some selectors mean the caller's own agent"
    assert refused >= 15, "and some mean nothing"


async def test_no_spelling_of_a_method_is_another_method(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: tuple[ScriptedAgent, ScriptedAgent]
) -> None:
    own, other = agents
    ci = await caller_of(api_of, gateway, "ci")
    for method in METHODS:
        for body in ({"agent": own.agent}, {"agent": other.agent}):
            answer = await ci.post({**body, "method": method})
            wanted = (202, 422) if method in ALLOWED and body["agent"] == own.agent else (403, 422)
            assert answer.status_code in wanted, (method, body, answer.text)
        for choice in ({"selector": "*"}, {"agents": [own.agent, other.agent]}):
            run = await ci.http.post("/v1/runs", json={**choice, "method": method, "dry_run": True})
            assert run.status_code in (200, 403, 422), (method, run.text)
            if run.status_code == 200:
                assert method in ALLOWED or run.json()["agents"] == [], (method, run.text)
                assert other.agent not in run.text
    # What did reach the caller's own agent has the name that was asked for, and no other.
    after = await ci.start(own.agent, "exec")
    while (command := await own.command()).id != after:
        assert command.method in ALLOWED
    assert command.method == "exec"


async def test_many_agents_at_once_are_refused_as_each_of_them_would_be(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, agents: tuple[ScriptedAgent, ScriptedAgent]
) -> None:
    own, other = agents
    ci = await caller_of(api_of, gateway, "ci")
    for names in agent_lists(own.agent, other.agent):
        answer = await ci.http.post("/v1/runs", json={"method": "exec", "agents": names, "unchecked": True})
        assert answer.status_code in (403, 422), (names, answer.text)
    for first, second in ((own, other), (other, own)):  # one would be checked, and the other one used
        body = f'{{"method":"exec","agents":["{first.agent}"],"agents":["{second.agent}"]}}'
        answer = await ci.http.post("/v1/runs", content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
    probe = await api.start(other.agent, "shell")
    assert (await other.command()).id == probe, "nothing else has reached the agent of others"
