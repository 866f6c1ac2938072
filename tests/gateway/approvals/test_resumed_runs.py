"""Rules that come while a run is paused: what it has not started needs their approval before it goes on."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import httpx2

from fairlead.audit.verification import read_lines
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import as_caller, create_token, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.gateway.second_person import ROLES, People, decide, fairlead, required
from support.oidc.issuer import Issuer
from support.waiting import until

EVERYWHERE = """\
  - methods: [exec]
    agents: "*"
    approvers: [{}]
"""


async def has_state(api: GatewayApi, run: str, state: str) -> bool:
    return bool((await api.http.get(f"/v1/runs/{run}")).json()["state"] == state)


async def has_targets(api: GatewayApi, run: str, count: int) -> bool:
    return bool((await api.http.get(f"/v1/runs/{run}")).json()["targets"] == count)


async def reads(people: People, folder: Path, approvers: str) -> None:
    """The node has read a rule that asks for the approval of somebody with this role on every agent."""
    write_roles(folder / "roles.yaml", ROLES + EVERYWHERE.format(approvers))

    async def told() -> bool:
        found = (await people.anna.http.get("/v1/auth/whoami")).json()["approvals"]
        return bool(found[-1]["approvers"] == [approvers])

    await until(told)


async def paused(api: GatewayApi, agents: list[ScriptedAgent], approval: str = "") -> str:
    """A run on these agents, one after the other, of which only the first has begun."""
    names = [one.agent for one in agents]
    body = {"method": "exec", "payload": {"argv": ["reboot"]}, "agents": names, "concurrency": 1}
    params = {"approval": approval} if approval else {}
    posted = await api.http.post("/v1/runs", json=body, params=params)
    if posted.status_code == 403:
        return required(posted)
    run = str(posted.json()["id"])
    first = await agents[0].expect(Cmd)
    assert (await api.http.post(f"/v1/runs/{run}/pause")).status_code == 202
    await until(lambda: has_state(api, run, "paused"))
    await agents[0].send(Ack(id=first.id), End(id=first.id, total=0))
    return run


async def resume(api: GatewayApi, run: str, approval: str = "") -> httpx2.Response:
    return await api.http.post(f"/v1/runs/{run}/resume", params={"approval": approval} if approval else {})


def resumed_under(folder: Path) -> list[tuple[str, str]]:
    """What the audit log says of every `resume` that was allowed: the approval, and whose it is."""
    lines = [line for line in read_lines(folder / "audit") if line.action == "resumeRun"]
    return [(line.approval, line.detail) for line in lines if line.outcome == "allowed"]


async def test_a_rule_that_comes_while_a_run_is_paused_is_asked_before_it_goes_on(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, dial: DialAgent, tmp_path: Path, issuer: Issuer
) -> None:
    agents = [await dial(gateway) for _ in range(3)]
    for one in agents:
        await one.greet()
    run = await paused(people.anna, agents)
    await reads(people, tmp_path, "security")
    approval = required(await resume(people.anna, run))
    assert required(await resume(people.anna, run)) == approval
    assert await has_state(people.anna, run, "paused")
    shown = (await people.bert.http.get(f"/v1/approvals/{approval}")).json()
    waiting = f"2 agents ({agents[1].agent}, {agents[2].agent}) on which run {run} has not started"
    assert (shown["kind"], shown["target"], shown["targets"], shown["payload"]) == (
        "resume", waiting, 2, '{"argv":["reboot"]}',
    )  # fmt: skip
    assert (await decide(people.bert, approval)).status_code == 204
    both = as_caller(api_of, gateway, await create_token(api_of(gateway), "both"))  # may cancel everybody's runs
    assert "somebody else's" in denied(await resume(both, run, approval)), "it needs one of its own"
    required(await resume(both, run))
    words = "runs", "resume", run, "--approval", approval
    resumed = await asyncio.to_thread(fairlead, gateway, issuer.token(sub="anna"), *words)
    assert resumed.returncode == 0, resumed.stderr
    second = await agents[1].expect(Cmd)
    assert (await resume(people.anna, run, approval)).status_code == 202, "the same request again"
    # What was approved may pause, and go on without another approval, as long as nobody asks for more.
    assert (await people.anna.http.post(f"/v1/runs/{run}/pause")).status_code == 202
    await until(lambda: has_state(people.anna, run, "paused"))
    await agents[1].send(Ack(id=second.id), End(id=second.id, total=0))
    await reads(people, tmp_path, "everything")
    required(await resume(people.anna, run))
    await reads(people, tmp_path, "security")
    assert (await resume(people.anna, run)).status_code == 202
    third = await agents[2].expect(Cmd)
    await agents[2].send(Ack(id=third.id), End(id=third.id, total=0))
    await until(lambda: has_state(people.anna, run, "done"))


async def test_a_run_that_was_approved_goes_on_and_so_does_one_of_the_platform(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, dial: DialAgent, tmp_path: Path
) -> None:
    agents = [await dial(gateway) for _ in range(2)]
    for one in agents:
        await one.greet()
    await reads(people, tmp_path, "security")
    approval = await paused(people.anna, agents)
    assert (await decide(people.bert, approval)).status_code == 204
    run = await paused(people.anna, agents, approval)
    assert (await resume(people.anna, run)).status_code == 202
    assert resumed_under(tmp_path) == [(approval, "approved by user:company:bert")]
    last = await agents[1].expect(Cmd)
    await agents[1].send(Ack(id=last.id), End(id=last.id, total=0))
    admin = api_of(gateway)
    run = await paused(admin, agents)
    assert (await resume(admin, run)).status_code == 202
    await agents[1].expect(Cmd)


async def test_no_resume_takes_back_a_pause_that_comes_at_the_same_time(
    gateway: GatewayProcess, people: People, dial: DialAgent, tmp_path: Path
) -> None:
    """What goes on again needs an approval: it must not be seen as running, and then be resumed once it is paused."""
    agents = [await dial(gateway) for _ in range(2)]
    for one in agents:
        await one.greet()
    body = {
        "method": "exec", "payload": {"argv": ["reboot"]}, "agents": [one.agent for one in agents], "concurrency": 1,
    }  # fmt: skip
    runs = [str((await people.anna.http.post("/v1/runs", json=body)).json()["id"]) for _ in range(10)]
    for _ in runs:
        await agents[0].expect(Cmd)
    await reads(people, tmp_path, "security")
    for run in runs:
        pause = asyncio.create_task(people.anna.http.post(f"/v1/runs/{run}/pause"))
        answers = await asyncio.gather(*(resume(people.anna, run) for _ in range(10)))
        assert (await pause).status_code == 202
        assert {answer.status_code for answer in answers} <= {202, 403}
        await until(partial(has_state, people.anna, run, "paused"))


async def test_agents_that_have_joined_are_not_approved_with_those_of_before(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, dial: DialAgent,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A run that agents join was approved for its first target; the others get the marked label while it is paused."""
    body = {"method": "exec", "payload": {"argv": ["reboot"]}, "selector": "*", "late": True, "concurrency": 1}
    first = required(await people.anna.http.post("/v1/runs", json=body))
    assert (await decide(people.bert, first)).status_code == 204
    run = (await people.anna.http.post("/v1/runs", json=body, params={"approval": first})).json()["id"]
    begun = await agent.expect(Cmd)
    joined = [await dial(gateway) for _ in range(2)]
    for count, one in enumerate(joined, 2):
        await one.greet()
        await until(partial(has_targets, people.anna, run, count))

    async def pauses_after(peer: ScriptedAgent, command: Cmd) -> None:
        assert (await people.anna.http.post(f"/v1/runs/{run}/pause")).status_code == 202
        await until(lambda: has_state(people.anna, run, "paused"))
        await peer.send(Ack(id=command.id), End(id=command.id, total=0))

    await pauses_after(agent, begun)
    for one in joined:
        labelled = await api_of(gateway).http.patch(f"/v1/agents/{one.agent}", json={"labels": {"env": "prod"}})
        assert labelled.status_code == 200, labelled.text
    second = required(await resume(people.anna, run))
    assert second != first
    assert (await decide(people.bert, second)).status_code == 204
    assert (await resume(people.anna, run, second)).status_code == 202
    await pauses_after(joined[0], await joined[0].expect(Cmd))
    assert (await resume(people.anna, run)).status_code == 202, "it was approved for the last one, too"
    await joined[1].expect(Cmd)
    assert resumed_under(tmp_path) == [(second, "approved by user:company:bert")] * 2
