"""A second person approves what is marked so: exactly that, once, in time, and never the one who has asked."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.audit.records import AuditLine
from fairlead.audit.verification import read_lines
from fairlead.shards import of_agent
from fairlead.signing.command_signature import ENVELOPE_BYTES
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import as_caller, create_token, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.gateway.second_person import ROLES, People, decide, fairlead, prod, required
from support.oidc.issuer import Issuer
from support.waiting import until

MARKED = {"method": "exec", "payload": {"argv": ["reboot"]}, "unchecked": True}


async def post(api: GatewayApi, agent: str, approval: str = "", **changed: Any) -> httpx2.Response:
    params = {"approval": approval} if approval else {}
    return await api.http.post("/v1/commands", json={"agent": agent, **MARKED, **changed}, params=params)


async def approved(people: People, agent: str, **changed: Any) -> str:
    approval = required(await post(people.anna, agent, **changed))
    assert (await decide(people.bert, approval)).status_code == 204
    return approval


async def nothing_arrives(api: GatewayApi, agent: ScriptedAgent) -> None:
    """Of what was posted so far; the administrator's command comes next, and needs no approval."""
    marker = await api.start(agent.agent, "exec")
    assert (await agent.expect(Cmd)).id == marker


def written(folder: Path, *actions: str) -> list[AuditLine]:
    return [line for line in read_lines(folder / "audit") if line.action in actions]


async def test_what_is_approved_starts_once_and_both_names_are_in_the_log(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, tmp_path: Path
) -> None:
    approval = required(await post(people.anna, agent.agent))
    assert required(await post(people.anna, agent.agent)) == approval  # the same request is one
    required(await post(people.anna, agent.agent, approval))  # nobody has approved it yet
    (shown,) = (await people.bert.http.get("/v1/approvals")).json()["approvals"]
    assert (shown["id"], shown["subject"], shown["method"], shown["target"], shown["decidable"], shown["mine"]) == (
        approval, "user:company:anna", "exec", agent.agent, True, False,
    )  # fmt: skip
    assert shown["payload"] == '{"argv":["reboot"]}'
    assert (await decide(people.bert, approval)).status_code == 204
    assert (await decide(people.bert, approval, "deny")).status_code == 422  # decided is decided
    accepted = await post(people.anna, agent.agent, approval)
    assert accepted.status_code == 202, accepted.text
    command = accepted.json()["id"]
    assert (await agent.expect(Cmd)).id == command
    again = await post(people.anna, agent.agent, approval)  # an answer may be lost: it is the same command
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (command, "true")
    assert (accepted.json()["replayed"], again.json()["replayed"]) == (False, True)
    await agent.send(Ack(id=command), End(id=command, total=0))
    await nothing_arrives(api_of(gateway), agent)
    mine = (await people.anna.http.get(f"/v1/approvals/{approval}")).json()
    assert (mine["state"], mine["command"], mine["decided_by"]) == ("used", command, "user:company:bert")
    asked, waiting, *_ = written(tmp_path, "postCommand")
    assert (asked.subject, asked.outcome, asked.approval, waiting.outcome) == (
        "user:company:anna", "denied", approval, "denied"
    )  # fmt: skip
    (decision,) = [line for line in written(tmp_path, "approveRequest") if line.outcome == "allowed"]
    assert (decision.subject, decision.approval, decision.method, decision.agent, decision.detail) == (
        "user:company:bert", approval, "exec", agent.agent, "command of user:company:anna",
    )  # fmt: skip
    started = next(line for line in written(tmp_path, "postCommand") if line.command == command)
    assert (started.subject, started.approval, started.detail, started.digest) == (
        "user:company:anna", approval, "approved by user:company:bert", decision.digest,
    )  # fmt: skip


async def test_nobody_approves_their_own_request_not_even_with_another_token(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, issuer: Issuer
) -> None:
    admin = api_of(gateway)
    own = required(await post(people.carl, agent.agent))
    assert "its own request" in denied(await decide(people.carl, own))
    other_login = as_caller(api_of, gateway, issuer.token(sub="carl", jti="another"))
    assert "its own request" in denied(await decide(other_login, own))
    # Carl makes a token for a bot that may approve, and one for another with that token.
    bot = as_caller(api_of, gateway, await create_token(people.carl, "bot"))
    assert "its own request" in denied(await decide(bot, own))
    second = as_caller(api_of, gateway, await create_token(bot, "bot"))
    await bot.http.delete(f"/v1/tokens/{str(bot.http.headers['authorization']).split('_')[1]}")
    assert "its own request" in denied(await decide(second, own))
    # Two tokens of one name are one caller, and the platform token is nobody.
    one, two = [as_caller(api_of, gateway, await create_token(admin, "both")) for _ in range(2)]
    of_token = required(await post(one, agent.agent))
    assert "its own request" in denied(await decide(two, of_token))
    assert "names nobody" in denied(await decide(admin, of_token))
    # Nor is a token that the caller, itself a token, has made, also by that one.
    maker = as_caller(api_of, gateway, await create_token(admin, "maker"))
    of_maker = required(await post(maker, agent.agent))
    made = as_caller(api_of, gateway, await create_token(maker, "made"))
    by_made = as_caller(api_of, gateway, await create_token(made, "bot"))
    for one_of_its_own in (made, by_made):
        assert "its own request" in denied(await decide(one_of_its_own, of_maker))
    other = as_caller(api_of, gateway, await create_token(admin, "both-2"))
    assert (await decide(other, of_token)).status_code == 204
    assert (await decide(people.bert, own)).status_code == 204
    await nothing_arrives(admin, agent)


async def test_who_has_not_the_role_neither_sees_nor_decides(
    people: People, agent: ScriptedAgent, gateway: GatewayProcess, api_of: MakeGatewayApi
) -> None:
    approval = required(await post(people.carl, agent.agent))
    assert (await people.anna.http.get(f"/v1/approvals/{approval}")).status_code == 404
    assert (await people.anna.http.get("/v1/approvals")).json() == {"approvals": []}
    assert "verb approve" in denied(await decide(people.anna, approval))
    # An approval of somebody else is none.
    assert (await decide(people.bert, approval)).status_code == 204
    assert "somebody else's" in denied(await post(people.anna, agent.agent, approval))
    await nothing_arrives(api_of(gateway), agent)


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": {"argv": ["reboot", "-f"]}}, {"payload": {"argv": ["reboot"], "user": "root"}},
        {"method": "file.put"},
        {"deadline": 61}, {"lane": "bulk"}, {"on_offline": {"queue": 60}}, {"retry": "safe"}, {"agent": "other"},
    ],
)  # fmt: skip
async def test_an_approval_is_for_exactly_what_was_shown(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, dial: DialAgent,
    changed: dict[str, Any],
) -> None:  # fmt: skip
    approval = await approved(people, agent.agent)
    if changed.get("agent"):
        other = await prod(api_of(gateway), await dial(gateway))
        changed = {}
        denied_for = other.agent
    else:
        denied_for = agent.agent
    assert "for something else" in denied(await post(people.anna, denied_for, approval, **changed))
    await nothing_arrives(api_of(gateway), agent)
    assert (await post(people.anna, agent.agent, approval)).status_code == 202  # it was not used up


async def test_a_denied_an_unknown_and_an_expired_approval_start_nothing(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, own_valkey: EmbeddedValkey
) -> None:
    no = required(await post(people.anna, agent.agent))
    assert (await decide(people.bert, no, "deny")).status_code == 204
    assert required(await post(people.anna, agent.agent, no), "denied") == no
    assert "there is no approval" in denied(await post(people.anna, agent.agent, "0" * 16))
    approval = await approved(people, agent.agent)
    # An hour cannot pass in a test: what Redis says about the end of this approval is set back.
    import redis.asyncio

    store = redis.asyncio.Redis.from_url(own_valkey.url, decode_responses=True)
    entry = str(await store.hget("fl1:approvals:{all}", approval)).split(" ", 2)
    await store.hset("fl1:approvals:{all}", approval, f"{entry[0]} 1 {entry[2]}")
    await store.aclose()
    assert "has expired" in denied(await post(people.anna, agent.agent, approval))
    assert (await decide(people.bert, approval)).status_code == 404
    await nothing_arrives(api_of(gateway), agent)


async def test_whoever_approved_must_still_be_allowed_to_when_it_starts(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, tmp_path: Path
) -> None:
    admin = api_of(gateway)
    by_user = await approved(people, agent.agent)
    by_token = required(await post(people.anna, agent.agent, payload={"n": 2}))
    text = await create_token(admin, "bot")
    assert (await decide(as_caller(api_of, gateway, text), by_token)).status_code == 204
    assert (await admin.http.delete(f"/v1/tokens/{text.split('_')[1]}")).status_code == 204
    assert "may no longer do so" in denied(await post(people.anna, agent.agent, by_token, payload={"n": 2}))
    write_roles(tmp_path / "roles.yaml", ROLES.replace('users: ["company:bert"], ', ""))

    async def refused() -> bool:
        answer = await people.bert.http.get("/v1/approvals")
        return answer.status_code == 403

    await until(refused)
    assert "may no longer do so" in denied(await post(people.anna, agent.agent, by_user))
    await nothing_arrives(admin, agent)


async def test_other_names_of_a_method_are_other_methods(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent
) -> None:
    """`*` covers them all for this caller, and the agent runs none of them: it is asked what they are."""
    both = as_caller(api_of, gateway, await create_token(api_of(gateway), "both"))
    for method in ("Exec", "exec.", "EXEC", "exec-"):
        answer = await post(both, agent.agent, method=method)
        assert answer.status_code in (202, 422), answer.text
        if answer.status_code == 202:
            assert (await agent.expect(Cmd)).method == method  # as it was posted: no end makes `exec` of it
    required(await post(both, agent.agent))
    required(await post(both, agent.agent, method="file.put"))


async def test_a_run_needs_the_approval_as_well_and_for_the_same_agents(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, dial: DialAgent
) -> None:
    other = await dial(gateway)
    await other.greet()
    marked: list[dict[str, Any]] = [{"agents": [other.agent, agent.agent]}, {"selector": "env=prod"}, {"selector": "*"}]
    for one in marked:
        answer = await people.anna.http.post("/v1/runs", json={**MARKED, **one})
        required(answer)
    unmarked = await people.anna.http.post("/v1/runs", json={**MARKED, "agents": [other.agent]})
    assert unmarked.status_code == 202, unmarked.text
    assert (await other.expect(Cmd)).method == "exec"
    body = {**MARKED, "selector": "env=prod"}
    approval = required(await people.anna.http.post("/v1/runs", json=body))
    shown = (await people.bert.http.get(f"/v1/approvals/{approval}")).json()
    assert (shown["kind"], shown["target"], shown["targets"]) == ("run", "env=prod", 1)
    assert (await decide(people.bert, approval)).status_code == 204
    params = {"approval": approval}
    others: list[dict[str, Any]] = [{"selector": "env in (prod)"}, {"concurrency": 7}, {"payload": {}}]
    for changed in others:
        denied(await people.anna.http.post("/v1/runs", json={**body, **changed}, params=params))
    denied(await post(people.anna, agent.agent, approval))  # a command is no run
    third = await prod(api_of(gateway), await dial(gateway))  # the selector has one more agent now
    assert "the same targets" in denied(await people.anna.http.post("/v1/runs", json=body, params=params))
    await api_of(gateway).http.patch(f"/v1/agents/{third.agent}", json={"labels": {"env": None}})
    begun = await people.anna.http.post("/v1/runs", json=body, params=params)
    assert begun.status_code == 202, begun.text
    ran = await agent.expect(Cmd)
    await agent.send(Ack(id=ran.id), End(id=ran.id, total=0, state="error"))
    again = await people.anna.http.post("/v1/runs", json=body, params=params)
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (begun.json()["id"], "true")

    async def over() -> bool:
        found = (await people.anna.http.get(f"/v1/runs/{begun.json()['id']}")).json()
        return found["ended"] is not None

    await until(over)
    required(await people.anna.http.post(f"/v1/runs/{begun.json()['id']}/retry", json={}))
    await nothing_arrives(api_of(gateway), agent)


async def test_nobody_else_types_into_what_was_approved(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent
) -> None:
    approval = await approved(people, agent.agent)
    command = (await post(people.anna, agent.agent, approval)).json()["id"]
    await agent.expect(Cmd)
    typist = as_caller(api_of, gateway, await create_token(api_of(gateway), "typist"))
    path = f"/v1/commands/{command}/input?n=0"
    assert "somebody else has an approval for" in denied(await typist.http.post(path, content=b"rm -rf /\n"))
    assert (await people.anna.http.post(path, content=b"y\n")).status_code == 204
    shell = await api_of(gateway).start(agent.agent, "shell")  # not marked
    await agent.expect(Cmd)
    assert (await typist.http.post(f"/v1/commands/{shell}/input?n=0", content=b"ls\n")).status_code == 204


async def test_nobody_takes_away_the_label_because_of_which_they_need_an_approval(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent
) -> None:
    for labels in ({"env": "dev"}, {"env": None}):
        answer = await people.anna.http.patch(f"/v1/agents/{agent.agent}", json={"labels": labels})
        assert "needs an approval there" in denied(answer)
    assert "needs an approval there" in denied(await people.anna.http.delete(f"/v1/agents/{agent.agent}"))
    assert (await people.anna.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"a": "b"}})).status_code == 200
    required(await post(people.anna, agent.agent))
    unknown = required(await post(people.anna, "never-seen"))  # its labels are not known
    assert unknown


async def test_an_approval_that_is_not_needed_is_refused_and_requests_are_bounded(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent, dial: DialAgent
) -> None:
    other = await dial(gateway)
    await other.greet()
    answer = await post(people.anna, other.agent, "0" * 16)
    assert (answer.status_code, answer.json()["field"]) == (422, "approval")
    for n in range(50):
        required(await post(people.anna, agent.agent, payload={"n": n}))
    full = await post(people.anna, agent.agent, payload={"n": 50})
    assert (full.status_code, "you have 50" in full.text) == (503, True)
    required(await post(people.carl, agent.agent))  # others have their own


async def test_many_posts_of_one_approval_at_the_same_moment_are_one_command(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent
) -> None:
    approval = await approved(people, agent.agent)
    answers = await asyncio.gather(*(post(people.anna, agent.agent, approval) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    await agent.expect(Cmd)
    await nothing_arrives(api_of(gateway), agent)


async def test_a_signed_command_uses_the_approval_for_one_id(
    gateway: GatewayProcess, api_of: MakeGatewayApi, people: People, agent: ScriptedAgent
) -> None:
    """Its id is its own, so the approval is what holds it to one."""

    def signed() -> dict[str, Any]:
        signature = base64.b64encode(bytes(ENVELOPE_BYTES)).decode()
        return {"id": of_agent(str(uuid.uuid4()), agent.agent), "signature": signature}

    approval = required(await post(people.anna, agent.agent, **signed()))
    assert (await decide(people.bert, approval)).status_code == 204
    first = signed()
    assert (await post(people.anna, agent.agent, approval, **first)).json()["id"] == first["id"]
    assert (await post(people.anna, agent.agent, approval, **first)).json()["id"] == first["id"]
    assert f"was used for {first['id']}" in denied(await post(people.anna, agent.agent, approval, **signed()))
    assert (await agent.expect(Cmd)).id == first["id"]
    await nothing_arrives(api_of(gateway), agent)


async def test_the_command_line_asks_shows_approves_and_starts(
    gateway: GatewayProcess, people: People, agent: ScriptedAgent, issuer: Issuer
) -> None:
    anna, bert = issuer.token(sub="anna"), issuer.token(sub="bert")
    call = "call", agent.agent, "exec", "--json", '{"argv":["reboot"]}'

    async def run(token: str, *args: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(fairlead, gateway, token, *args)

    asked = await run(anna, *call)
    assert asked.returncode != 0
    assert "repeat the same command with --approval ID" in asked.stderr
    (approval,) = (await run(bert, "approvals", "ls", "-o", "name")).stdout.split()
    assert approval in asked.stderr
    shown = (await run(bert, "approvals", "show", approval)).stdout
    assert '{"argv":["reboot"]}' in shown
    assert "user:company:anna" in shown
    assert (await run(anna, "approvals", "approve", approval)).returncode != 0
    assert (await run(bert, "approvals", "approve", approval)).returncode == 0
    started = asyncio.create_task(run(anna, *call, "--approval", approval))
    command = await agent.expect(Cmd)
    await agent.send(Ack(id=command.id), End(id=command.id, total=0))
    assert (await started).returncode == 0
    assert "with this approval before" not in (await started).stderr
    once_more = await run(anna, *call, "--approval", approval)
    assert once_more.returncode == 0
    assert f"command {command.id} was started with this approval before; it is not started again" in once_more.stderr
    on_all = "run", "exec", "-l", "env=prod", 'argv:=["reboot"]'
    denied_one = await run(anna, *on_all)
    assert "needs an approval on env=prod" in denied_one.stderr
    second = [one for one in (await run(bert, "approvals", "ls", "-o", "name")).stdout.split() if one != approval]
    assert (await run(bert, "approvals", "deny", *second)).returncode == 0
    refused = (await run(anna, *on_all, "--approval", *second)).stderr
    assert "is denied" in refused
    assert "post without it to ask for another one" in refused
    assert "when it is approved" not in refused


async def test_who_asks_what_they_may_do_is_told_of_approvals(
    gateway: GatewayProcess, people: People, agent: ScriptedAgent, issuer: Issuer, api_of: MakeGatewayApi
) -> None:
    async def asked(api: GatewayApi, **question: str) -> tuple[bool, list[dict[str, Any]]]:
        found = (await api.http.get("/v1/auth/can-i", params=question)).json()
        return found["allowed"], found["approvals"]

    rule = {"methods": ["exec", "file.*"], "agents": "env=prod", "approvers": ["everything", "security"]}
    always, sometimes = [{**rule, "always": True}], [{**rule, "always": False}]
    for question, needed in (
        ({"method": "exec", "agent": agent.agent}, always),
        ({"method": "exec", "selector": "env=prod,team=web"}, always),
        ({"method": "file.get", "selector": "env in (prod,test)"}, sometimes),
        ({"method": "exec"}, sometimes),
        ({"method": "exec", "selector": "env=test"}, []),
        ({"method": "exec", "selector": "env!=prod"}, []),
        ({"method": "exec", "selector": "!env"}, []),
        ({"method": "shell", "agent": agent.agent}, []),
        ({"verb": "view", "agent": agent.agent}, []),
    ):
        assert await asked(people.anna, **question) == (True, needed), question
    assert await asked(people.bert, method="exec", agent=agent.agent) == (False, [])
    assert await asked(api_of(gateway), method="exec", agent=agent.agent) == (True, []), "an administrator needs none"
    for who, needed in ((people.anna, sometimes), (people.bert, []), (api_of(gateway), [])):
        assert (await who.http.get("/v1/auth/whoami")).json()["approvals"] == needed
    anna = issuer.token(sub="anna")

    async def cli(*args: str) -> str:
        done = await asyncio.to_thread(fairlead, gateway, anna, "auth", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    security = "another person with the role everything or security"
    assert await cli("can-i", "exec", "--agent", agent.agent) == (
        f"yes, with the approval of {security}: role work allows it\n"
    )
    assert await cli("can-i", "exec") == f"yes: role work allows it\n  on env=prod with the approval of {security}\n"
    assert await cli("can-i", "exec", "-l", "env=test") == "yes: role work allows it\n"
    assert f"approval  exec, file.* on env=prod: {security}\n" in await cli("whoami")
