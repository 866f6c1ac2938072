"""Who may run what on many agents: a selection has no agent that its caller may not use, and runs have an owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import SUBJECT
from fairlead.app.routes.runs.run_start import RunStartRoutes
from fairlead.authorization.subject import Subject
from fairlead.errors import Unauthorized
from fairlead.fleet.schema import SCHEDULES_DUE
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk, Cmd, End

from support.fixtures import RedisOf
from support.gateway.platform_api import FITTING, GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import caller_of, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.waiting import until


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
    assert (
        await watch.http.post("/v1/runs", json={"method": "exec", "agents": [dev.agent], "payload": FITTING["exec"]})
    ).status_code == 403


async def test_batches_tell_nothing_about_agents_that_the_caller_may_not_view(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """The order of a dry run would be that of their labels. The role of `named` runs a method and views nothing."""
    agents = [await dial(gateway, agent=f"named-{n}") for n in range(2)]
    for agent in agents:
        await labelled(api, agent, "dev")
    named = await caller_of(api_of, gateway, "named")
    body = {"method": "work", "agents": [agent.agent for agent in agents], "dry_run": True}
    assert (await named.http.post("/v1/runs", json=body)).status_code == 200
    refused = await named.http.post("/v1/runs", json={**body, "batches": {"by": "label.env"}})
    assert "verb view" in denied(refused)


async def test_a_run_belongs_to_whoever_posted_it(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    dev = await labelled(api, await dial(gateway), "dev")
    deploy, watch = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "watcher")
    posted = await deploy.http.post(
        "/v1/runs", json={"method": "exec", "agents": [dev.agent], "payload": FITTING["exec"]}
    )
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
    again = await watch.http.post(f"/v1/runs/{run}/retry", json={"states": ["ok"]})
    assert again.status_code == 403
    assert run not in {one["id"] for one in (await watch.http.get("/v1/runs")).json()["runs"]}
    assert run in {one["id"] for one in (await deploy.http.get("/v1/runs")).json()["runs"]}
    everybody = await caller_of(api_of, gateway, "all")
    assert run in {one["id"] for one in (await everybody.http.get("/v1/runs")).json()["runs"]}
    assert (await everybody.http.get(f"/v1/runs/{run}")).status_code == 200
    # The agent is another's from now on, so what it returned is no longer shown.
    await api.http.patch(f"/v1/agents/{dev.agent}", json={"labels": {"env": "prod"}})
    moved = await deploy.http.post(f"/v1/runs/{run}/retry", json={"states": ["ok"]})
    assert dev.agent in denied(moved)
    hidden = (await deploy.http.get(f"/v1/runs/{run}")).json()["outcomes"]
    assert [(one["count"], one["agents"], one["commands"], one["digest"]) for one in hidden] == [(1, [], [], None)]
    after = await deploy.http.get(f"/v1/runs/{run}/results")
    assert "a secret" not in after.text
    assert '"withheld":true' in after.text
    assert '"digest":null' in after.text, "a digest tells what was said to whoever can guess it"


async def test_whoever_resumes_a_run_may_still_run_its_method_on_what_has_not_begun(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """What goes on by itself needs no right that was taken away since; to have it go on again does."""
    first, second = [await labelled(api, await dial(gateway), "dev") for _ in range(2)]
    deploy, everybody = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "all")
    body = {"method": "exec", "agents": [first.agent, second.agent], "concurrency": 1, "payload": FITTING["exec"]}
    run = (await deploy.http.post("/v1/runs", json=body)).json()["id"]

    async def waits() -> bool:
        return bool((await deploy.http.get(f"/v1/runs/{run}")).json()["counts"] == {"waiting": 1, "ok": 1})

    assert (await deploy.http.post(f"/v1/runs/{run}/pause")).status_code == 202
    await until(lambda: _has_state(api, run, "paused"))
    await answer_once(first, b"before")
    await until(waits)
    await api.http.patch(f"/v1/agents/{first.agent}", json={"labels": {"env": "prod"}})  # which is done with
    await api.http.patch(f"/v1/agents/{second.agent}", json={"labels": {"env": "prod"}})
    assert second.agent in denied(await deploy.http.post(f"/v1/runs/{run}/resume"))
    assert (await api.http.get(f"/v1/runs/{run}")).json()["state"] == "paused"
    await api.http.patch(f"/v1/agents/{second.agent}", json={"labels": {"env": "dev"}})
    assert (await deploy.http.post(f"/v1/runs/{run}/resume")).status_code == 202
    await until(lambda: _has_state(api, run, "running"))
    assert (await deploy.http.post(f"/v1/runs/{run}/pause")).status_code == 202
    await api.http.patch(f"/v1/agents/{second.agent}", json={"labels": {"env": "prod"}})
    assert (await everybody.http.post(f"/v1/runs/{run}/resume")).status_code == 202, "its role is for everybody's runs"
    await answer_once(second, b"after")
    assert (await ended(api, run))["counts"] == {"ok": 2}


async def _has_state(api: GatewayApi, run: str, state: str) -> bool:
    return bool((await api.http.get(f"/v1/runs/{run}")).json()["state"] == state)


async def test_only_agents_that_the_poster_may_use_now_join_a_run(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """Until their token is revoked; then nobody joins."""
    made = await api.http.post("/v1/tokens", json={"name": "ci"})
    assert made.status_code == 201, made.text
    deploy = api_of(gateway)
    deploy.http.headers["authorization"] = f"Bearer {made.json()['token']}"
    body = {
        "method": "exec",
        "payload": FITTING["exec"],
        "selector": "label.late=yes",
        "late": True,
        "run_deadline": 600,
        "deadline": 60,
    }
    posted = await deploy.http.post("/v1/runs", json=body)
    assert posted.status_code == 202, posted.text
    run = posted.json()["id"]

    async def late(env: str) -> ScriptedAgent:
        agent = await labelled(api, await dial(gateway), env)
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"late": "yes"}})
        return agent

    async def counts() -> dict[str, int]:
        return dict((await api.http.get(f"/v1/runs/{run}")).json()["counts"])

    await late("prod")
    dev = await late("dev")
    await answer_once(dev, b"joined")
    await until(lambda: _is(counts, {"ok": 1}))
    revoked = await api.http.delete(f"/v1/tokens/{made.json()['id']}")
    assert revoked.status_code in (200, 204), revoked.text
    administrators = (await api.http.post("/v1/runs", json={**body, "selector": "label.late=yes,env=dev"})).json()["id"]
    for targets in (2, 3):  # the same node looks for both runs, so it has looked for the first one in between
        await late("dev")
        await until(lambda: _count(api, administrators, targets))  # noqa: B023  # it is awaited here
    assert await counts() == {"ok": 1}


async def _is(counts: Callable[[], Awaitable[dict[str, int]]], wanted: dict[str, int]) -> bool:
    return await counts() == wanted


async def _count(api: GatewayApi, run: str, targets: int) -> bool:
    return bool((await api.http.get(f"/v1/runs/{run}")).json()["targets"] == targets)


async def test_a_schedule_begins_with_the_rights_that_its_poster_has_then(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent, shared_valkey: EmbeddedValkey,
    redis_of: RedisOf,
) -> None:  # fmt: skip
    redis = await redis_of(shared_valkey)
    dev, prod = await labelled(api, await dial(gateway), "dev"), await labelled(api, await dial(gateway), "prod")
    for agent in (dev, prod):
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"scheduled": "yes"}})
    made = await api.http.post("/v1/tokens", json={"name": "ci"})
    deploy, watch = api_of(gateway), await caller_of(api_of, gateway, "watcher")
    deploy.http.headers["authorization"] = f"Bearer {made.json()['token']}"
    body = {
        "name": "n",
        "cron": "0 0 1 1 *",
        "run": {"method": "exec", "payload": FITTING["exec"], "selector": "label.scheduled=yes"},
    }
    assert (await watch.http.post("/v1/schedules", json=body)).status_code == 403
    posted = await deploy.http.post("/v1/schedules", json=body)
    assert posted.status_code == 201, posted.text
    id = posted.json()["id"]
    assert (await watch.http.get("/v1/schedules")).json() == {"schedules": []}
    assert (await watch.http.delete(f"/v1/schedules/{id}")).status_code == 403

    async def last() -> Any:
        found = (await api.http.get("/v1/schedules")).json()["schedules"]
        return next(one["last"] for one in found if one["id"] == id)

    await redis.submit("ZADD", SCHEDULES_DUE, int(time.time() * 1000) - 500, id)
    await answer_once(dev, b"on schedule")
    await until(last)
    started = await last()
    assert started["outcome"] == "started"
    found = await ended(api, started["run"])
    assert (found["counts"], found["subject"]) == ({"ok": 1}, "token:ci")
    await api.http.delete(f"/v1/tokens/{made.json()['id']}")

    async def forbidden() -> bool:
        return bool((await last())["outcome"] == "forbidden")

    await redis.submit("ZADD", SCHEDULES_DUE, int(time.time() * 1000) - 500, id)
    await until(forbidden)


class RevokedWhileReading:
    """The parts of a node that a post of a run asks: the token of its caller is revoked while they read the agents."""

    def __init__(self) -> None:
        self.revoked = self.begun = False
        self.authorizer, self.data_check = self, None
        self.routing = SimpleNamespace(contents=None, runs=SimpleNamespace(selection=self, service=self))
        self.now = 1_000

    def require_still(self, *_: object) -> None:
        if self.revoked:
            raise Unauthorized("the service token of this request was revoked")

    async def rows(self, _agents: list[str]) -> list[Any]:
        self.revoked = True
        return []

    def require_run_on(self, *_: object) -> None:
        pass

    def approval_rules_on(self, *_: object) -> list[Any]:
        return []

    async def enter(self, *_: object) -> None:
        pass

    async def submit(self, _order: object, permit: Any) -> Any:
        await permit("a-run")
        self.begun = True
        return "a-run", False


async def test_a_run_does_not_begin_whose_caller_was_revoked_while_its_agents_were_read() -> None:
    """Which may take 25 seconds, when a node is busy."""
    parts: Any = RevokedWhileReading()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"method": "work", "agents": ["web-1"]}', "more_body": False}

    scope = {"type": "http", "headers": [], "query_string": b"", SUBJECT: Subject("token:ci", "ci", "0" * 12)}
    routes = RunStartRoutes(parts, Auditor(None), parts)
    with pytest.raises(Unauthorized):
        await routes.post(Request(scope, receive))
    assert not parts.begun
