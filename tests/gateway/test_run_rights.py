"""Who may run what on many agents: a selection has no agent that its caller may not use, and runs have an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk, Cmd, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import caller_of, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("run-rights")
    write_roles(folder / "roles.yaml")
    process = GatewayProcess(folder, shared_valkey.url, ("--roles", str(folder / "roles.yaml")))
    process.start()
    yield process
    process.stop()


async def labelled(api: GatewayApi, agent: ScriptedAgent, env: str) -> ScriptedAgent:
    await agent.greet(facts={"env": "dev"})  # it says what it likes
    answer = await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": env}})
    assert answer.status_code == 200, answer.text
    return agent


async def answer_once(agent: ScriptedAgent, text: bytes) -> None:
    command = await agent.expect(Cmd)
    await agent.send(
        Ack(id=command.id), Chunk(id=command.id, n=0, kind="stdout", payload=text), End(id=command.id, total=1)
    )


async def ended(api: GatewayApi, run: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not (found := (await api.http.get(f"/v1/runs/{run}")).json())["ended"]:
            await asyncio.sleep(0.05)
    return dict(found)


async def test_a_run_reaches_only_agents_that_its_caller_may_use(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    dev, prod = await labelled(api, await dial(gateway), "dev"), await labelled(api, await dial(gateway), "prod")
    deploy, watch = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "watcher")
    dry = await deploy.http.post("/v1/runs", json={"method": "exec", "selector": "*", "dry_run": True})
    assert dry.status_code == 200
    assert dev.agent in dry.json()["agents"]
    assert prod.agent not in dry.json()["agents"]
    by_fact = {"method": "exec", "selector": "fact.env=dev", "dry_run": True}  # what agents say gives no right
    assert prod.agent not in (await deploy.http.post("/v1/runs", json=by_fact)).json()["agents"]
    listed = await deploy.http.post("/v1/runs", json={"method": "exec", "agents": [dev.agent, prod.agent]})
    assert prod.agent in denied(listed)
    other = await deploy.http.post("/v1/runs", json={"method": "shell", "agents": [dev.agent]})
    assert "method shell" in denied(other)
    nothing = await deploy.http.post("/v1/runs", json={"method": "shell", "selector": "*"})
    assert (nothing.status_code, nothing.json()["field"]) == (422, "selector")
    unknown = await deploy.http.post("/v1/runs", json={"method": "exec", "agents": ["never-seen"]})
    assert "never-seen" in denied(unknown)
    assert (await watch.http.post("/v1/runs", json={"method": "exec", "agents": [dev.agent]})).status_code == 403


async def test_a_run_belongs_to_whoever_posted_it(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    dev = await labelled(api, await dial(gateway), "dev")
    deploy, watch = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "watcher")
    posted = await deploy.http.post("/v1/runs", json={"method": "exec", "agents": [dev.agent]})
    assert posted.status_code == 202, posted.text
    run = posted.json()["id"]
    await answer_once(dev, b"a secret")
    assert (await ended(deploy, run))["counts"] == {"ok": 1}
    assert "a secret" in (await deploy.http.get(f"/v1/runs/{run}/results")).text
    for path in ("", "/results"):  # their rule is for the agents of dev, and a run may have any
        assert (await watch.http.get(f"/v1/runs/{run}{path}")).status_code == 403
    for wish in ("pause", "resume"):
        assert (await watch.http.post(f"/v1/runs/{run}/{wish}")).status_code == 403
    assert (await watch.http.delete(f"/v1/runs/{run}")).status_code == 403
    everybody = await caller_of(api_of, gateway, "all")
    assert (await everybody.http.get(f"/v1/runs/{run}")).status_code == 200
    # The agent is another's from now on, so what it returned is no longer shown.
    await api.http.patch(f"/v1/agents/{dev.agent}", json={"labels": {"env": "prod"}})
    after = await deploy.http.get(f"/v1/runs/{run}/results")
    assert "a secret" not in after.text
    assert '"withheld":true' in after.text
