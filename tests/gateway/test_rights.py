"""Who may do what over the API: callers with service tokens, real agents, and every way around that was thought of."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.app.api.openapi import document
from fairlead.methods.library import LIBRARY
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Ack, Chunk, End

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import ROLES, as_caller, caller_of, create_token, denied, write_roles
from support.gateway.scripted_agent import DialAgent, ScriptedAgent

COMMAND = "0192f1b0-0000-7000-8000-000000000001"
ABOUT_ONESELF = {"whoami", "canI"}
"""Everybody with a valid credential may ask what they may do."""


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("rights")
    write_roles(folder / "roles.yaml")
    process = GatewayProcess(folder, shared_valkey.url, ("--roles", str(folder / "roles.yaml")))
    process.start()
    yield process
    process.stop()


async def labelled(api: GatewayApi, agent: ScriptedAgent, **labels: str) -> ScriptedAgent:
    await agent.greet(facts={"env": "dev", "place": "here"})  # it says what it likes
    answer = await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": labels})
    assert answer.status_code == 200, answer.text
    return agent


@pytest.fixture
async def dev(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> ScriptedAgent:
    return await labelled(api, await dial(gateway), env="dev")


@pytest.fixture
async def prod(gateway: GatewayProcess, api: GatewayApi, dial: DialAgent) -> ScriptedAgent:
    return await labelled(api, await dial(gateway), env="prod")


def operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Every operation of the document: its name, method, path with values in place, and description."""
    found = []
    for path, methods in json.loads(document())["paths"].items():
        filled = (
            path.replace("{command}", COMMAND)
            .replace("{run}", COMMAND)
            .replace("{agent}", "agent-1")
            .replace("{token}", "0" * 12)
            .replace("{approval}", "0" * 16)
            .replace("{group}", "readers")
            .replace("{sink}", "siem")
            .replace("{letter}", "1-0")
        )
        found += [(one["operationId"], method, filled, one) for method, one in methods.items()]
    assert len(found) >= 16
    return found


async def ask(api: GatewayApi, method: str, path: str, operation: dict[str, Any]) -> int:
    body: object = None
    if operation["operationId"] == "postCommand":
        body = {"agent": "agent-1", "method": "exec"}
    elif operation["operationId"] == "createToken":
        body = {"name": "all"}
    elif "requestBody" in operation:
        body = {"labels": {}}
    answer = await api.http.request(method.upper(), path, json=body)
    return answer.status_code


async def test_every_operation_refuses_a_token_without_a_role(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi
) -> None:
    nobody = await caller_of(api_of, gateway, "both", roles=["look"])
    write_roles(gateway.folder / "roles.yaml", ROLES.replace("roles: [look, all]", "roles: [all]"))
    try:
        async with asyncio.timeout(10):
            while (await nobody.http.get("/v1/agents")).status_code != 403:
                await asyncio.sleep(0.05)
        for name, method, path, operation in operations():
            status = await ask(nobody, method, path, operation)
            assert (status == 403) is (name not in ABOUT_ONESELF), name
            assert await ask(as_caller(api_of, gateway, "fl_000000000000_" + "A" * 43), method, path, operation) == 401
            assert "403" in operation["responses"]
            assert await ask(api, method, path, operation) not in (401, 403), name
    finally:
        write_roles(gateway.folder / "roles.yaml")


async def test_every_operation_refuses_a_role_for_something_else(
    gateway: GatewayProcess, api_of: MakeGatewayApi
) -> None:
    """The role `all` has every method and verb on every agent, and nothing on the gateway; `keys` has the reverse."""
    everything, keys = (
        await caller_of(api_of, gateway, "all"),
        await caller_of(api_of, gateway, "keeper", roles=["keys"]),
    )
    for name, method, path, operation in operations():
        if name not in (*ABOUT_ONESELF, "getOpenapi", "listMethods"):
            about_tokens = path.startswith("/v1/tokens")
            about_enrolment = path.startswith(("/v1/enrolment-tokens", "/v1/pending-agents")) or "/key" in path
            assert (await ask(everything, method, path, operation) == 403) is (
                about_tokens or about_enrolment or name in ("listNodes", "listTenants", "approveRequest", "denyRequest")
            ), name
            if name != "createToken":  # which gives no more than the creator has
                assert (await ask(keys, method, path, operation) == 403) is not about_tokens, name


async def test_the_library_of_methods_says_what_a_caller_may_run(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi
) -> None:
    async def allowed(caller: GatewayApi) -> set[str]:
        answer = await caller.http.get("/v1/methods")
        assert answer.status_code == 200, answer.text
        return {one["name"] for one in answer.json()["methods"] if one["allowed"]}

    assert await allowed(api) == set(LIBRARY)
    assert await allowed(await caller_of(api_of, gateway, "ci")) == {"exec", "file.get", "file.put"}
    assert await allowed(await caller_of(api_of, gateway, "looker")) == set()


async def test_a_caller_runs_what_its_role_says_where_it_says(
    gateway: GatewayProcess, api_of: MakeGatewayApi, dev: ScriptedAgent, prod: ScriptedAgent
) -> None:
    ci = await caller_of(api_of, gateway, "ci")
    command = await ci.start(dev.agent, "exec")
    assert (await dev.command()).id == command
    assert (await ci.start(dev.agent, "file.get")) == (await dev.command()).id
    for agent, method in ((prod.agent, "exec"), (dev.agent, "shell"), (dev.agent, "EXEC"), (dev.agent, "file"),
                          ("no-such-agent", "exec")):  # fmt: skip
        reason = denied(await ci.post({"agent": agent, "method": method}))
        assert reason == (
            f"token:ci may not use method {method} on agent {agent!r}: expected a rule with method {method} for this "
            "agent in one of its roles, deploy (an administrator changes them in the file of roles)"
        )
    shown = await ci.http.get(f"/v1/commands/{command}")
    assert shown.json()["subject"] == "token:ci"


async def test_what_an_agent_says_about_itself_opens_nothing(
    gateway: GatewayProcess, api_of: MakeGatewayApi, prod: ScriptedAgent, dial: DialAgent
) -> None:
    """`prod` says that it is `env=dev`; only a rule that asks for the fact believes an agent."""
    ci, here = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "here")
    denied(await ci.post({"agent": prod.agent, "method": "exec"}))
    await here.start(prod.agent)
    newcomer = await dial(gateway)
    await newcomer.greet(facts={"env": "dev"})
    denied(await ci.post({"agent": newcomer.agent, "method": "exec"}))


async def test_lists_never_contain_whom_the_caller_may_not_see(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    fleet = secrets.token_hex(4)
    peers = [await labelled(api, await dial(gateway), env="prod" if n % 4 else "dev", fleet=fleet) for n in range(16)]
    seen = {peer.agent for peer in peers[::4]}
    looker = await caller_of(api_of, gateway, "looker")
    for selector in (f"fleet={fleet}", f"fleet={fleet},env!=x", "env=prod", "fact.place=here", "!nothing", ""):
        for limit in (1, 3, 1000):
            cursor, names = "", []
            async with asyncio.timeout(60):
                while True:
                    query = {"selector": selector, "limit": limit, "cursor": cursor}
                    page = (await looker.http.get("/v1/agents", params=query)).json()
                    names += [one["id"] for one in page["agents"]]
                    assert all(one["labels"]["env"] == "dev" for one in page["agents"])
                    assert page["undecided"] == 0
                    cursor = page["cursor"]
                    if not cursor:
                        break
                    _, _, last = cursor.partition(":")
                    assert not last or (await api.agent(last))["labels"]["env"] == "dev"
            assert len(names) == len(set(names))
            if selector == "env=prod":
                assert names == []
            else:
                assert seen <= set(names)
    for by in ("rtt", "open"):
        ranked = (await looker.http.get("/v1/links", params={"by": by, "limit": 100})).json()["links"]
        assert all(one["agent"] not in {p.agent for p in peers} - seen for one in ranked)
    for path in ("", "/link"):
        denied(await looker.http.get(f"/v1/agents/{peers[1].agent}{path}"))
        assert (await looker.http.get(f"/v1/agents/{peers[0].agent}{path}")).status_code == 200


async def test_what_others_run_is_hidden(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dev: ScriptedAgent
) -> None:
    ci, other = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "other-ci")
    watcher, looker = await caller_of(api_of, gateway, "watcher"), await caller_of(api_of, gateway, "looker")
    key = secrets.token_hex(8)
    answer = await ci.post({"agent": dev.agent, "method": "exec"}, **{"Idempotency-Key": key})
    command = answer.json()["id"]
    assert (await dev.command()).id == command
    await dev.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"secret"))
    for stranger in (other, looker):
        for method, path in (
            ("GET", ""), ("GET", "/results"), ("GET", "/results?follow=true"), ("POST", "/input?n=0"), ("DELETE", ""),
        ):  # fmt: skip
            denied(await stranger.http.request(method, f"/v1/commands/{command}{path}"))
    denied(await watcher.http.post(f"/v1/commands/{command}/input?n=0", content=b"x"))
    # The same key of another caller is another command.
    mine = await other.post({"agent": dev.agent, "method": "exec"}, **{"Idempotency-Key": key})
    assert mine.json()["id"] != command
    assert "idempotency-replayed" not in mine.headers
    again = await ci.post({"agent": dev.agent, "method": "exec"}, **{"Idempotency-Key": key})
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (command, "true")
    # Whoever may read results sees them; whoever may only look does not see that there is a command.
    assert (await watcher.get(command))["state"] == "running"
    assert command in (await watcher.agent(dev.agent))["open_commands"]
    assert (await looker.agent(dev.agent))["open_commands"] == []
    await dev.send(End(id=command, total=1, payload=b"{}"))
    assert await ci.output(command) == "secret"
    assert await watcher.output(command) == "secret"
    assert (await watcher.http.delete(f"/v1/commands/{command}")).status_code == 202


async def test_a_caller_without_the_method_loses_its_own_commands(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    agent = await labelled(api, await dial(gateway), env="dev")
    ci = await caller_of(api_of, gateway, "ci")
    command = await ci.start(agent.agent, "exec")
    await agent.command()
    await agent.send(Ack(id=command), Chunk(id=command, n=0, kind="stdout", payload=b"begun"))
    async with ci.http.stream("GET", f"/v1/commands/{command}/results?follow=true") as stream:
        lines = stream.aiter_lines()
        assert json.loads(await anext(lines))["text"] == "begun"
        await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "prod"}})
        async with asyncio.timeout(5):
            last = [line async for line in lines][-1]
    assert json.loads(last)["error"]["code"] == "permission_denied"
    denied(await ci.http.get(f"/v1/commands/{command}"))


async def test_nobody_labels_an_agent_into_or_out_of_others(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dev: ScriptedAgent, prod: ScriptedAgent
) -> None:
    ci = await caller_of(api_of, gateway, "ci")
    for agent, labels in ((prod, {"env": "dev"}), (prod, {}), (dev, {"env": "prod"}), (dev, {"env": None})):
        denied(await ci.http.patch(f"/v1/agents/{agent.agent}", json={"labels": labels}))
    answer = await ci.http.patch(f"/v1/agents/{dev.agent}", json={"labels": {"ring": "1"}})
    assert answer.json() == {"labels": {"env": "dev", "ring": "1"}}
    assert (await api.agent(prod.agent))["labels"] == {"env": "prod"}
    denied(await ci.http.delete(f"/v1/agents/{dev.agent}/link"))
    denied(await ci.http.delete(f"/v1/agents/{dev.agent}"))


async def test_nobody_labels_an_agent_into_its_own_rights(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dev: ScriptedAgent, prod: ScriptedAgent
) -> None:
    """Two roles that are harmless one by one: to label every agent, and to run commands where env=dev."""
    climber, labeller = [await caller_of(api_of, gateway, name) for name in ("climber", "labeller")]
    denied(await climber.post({"agent": prod.agent, "method": "exec"}))
    for labels in ({"env": "dev"}, {"env": "dev", "ring": "1"}):
        told = denied(await climber.http.patch(f"/v1/agents/{prod.agent}", json={"labels": labels}))
        assert "they would give it method exec there" in told
    assert (await api.agent(prod.agent))["labels"] == {"env": "prod"}
    denied(await climber.post({"agent": prod.agent, "method": "exec"}))
    for caller, agent, labels in (
        (climber, prod, {"ring": "1"}),  # gives nothing
        (climber, dev, {"ring": "1"}),  # it has these rights already
        (climber, dev, {"env": "prod"}),  # takes them away
        (labeller, prod, {"env": "dev"}),  # gives others what it does not have itself: this is what it labels for
    ):
        answer = await caller.http.patch(f"/v1/agents/{agent.agent}", json={"labels": labels})
        assert answer.status_code == 200, answer.text


async def test_ids_in_rules_are_names_or_their_beginnings(
    gateway: GatewayProcess, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    named = await caller_of(api_of, gateway, "named")
    for name, allowed in ((f"named-{secrets.token_hex(4)}", True), (f"xnamed-{secrets.token_hex(4)}", False)):
        peer = await dial(gateway, name)
        await peer.greet()
        answer = await named.post({"agent": name, "method": "work"})
        assert answer.status_code == (202 if allowed else 403)


async def test_a_creator_gives_no_more_than_it_has(gateway: GatewayProcess, api_of: MakeGatewayApi) -> None:
    keeper = await caller_of(api_of, gateway, "keeper")
    assert await create_token(keeper, "looker")
    assert await create_token(keeper, "both", roles=["look"])
    for body in ({"name": "ci"}, {"name": "all"}, {"name": "both"}, {"name": "both", "roles": ["all"]}):
        assert "may not create a token with the role" in denied(await keeper.http.post("/v1/tokens", json=body))
    wrong: tuple[tuple[dict[str, object], str], ...] = (
        ({"name": "stranger"}, "no role is bound to the token stranger"),
        ({"name": "looker", "roles": ["all"]}, "role all is not bound to the token looker: expected look"),
        ({"name": "looker", "roles": []}, "invalid roles"),
        ({"name": "looker", "lifetime": 1}, "invalid lifetime"),
        ({"name": "a b"}, "invalid name"),
    )
    for order, problem in wrong:
        refused = await keeper.http.post("/v1/tokens", json=order)
        assert refused.status_code == 422
        assert problem in refused.json()["detail"]


async def test_a_changed_file_holds_within_seconds_and_a_wrong_one_never(
    gateway: GatewayProcess, api_of: MakeGatewayApi, dev: ScriptedAgent, tmp_path: Path
) -> None:
    path = gateway.folder / "roles.yaml"
    looker = await caller_of(api_of, gateway, "looker")
    denied(await looker.post({"agent": dev.agent, "method": "exec"}))
    try:
        write_roles(
            path, ROLES.replace("{tokens: [looker], roles: [look]}", "{tokens: [looker], roles: [look, deploy]}")
        )
        async with asyncio.timeout(5):
            while (await looker.post({"agent": dev.agent, "method": "exec"})).status_code != 202:
                await asyncio.sleep(0.05)
        before = len(gateway.log())
        write_roles(path, ROLES.replace("roles: [look]}", "roles: [loook]}"))
        async with asyncio.timeout(5):
            while "the file of roles cannot be used, so the roles stay as they were" not in gateway.log(before):
                await asyncio.sleep(0.05)
        assert "bindings[2].roles[0] is 'loook': expected one of the roles deploy, watch" in gateway.log(before)
        assert (await looker.post({"agent": dev.agent, "method": "exec"})).status_code == 202
        path.unlink()
        async with asyncio.timeout(5):
            while "cannot be read" not in gateway.log(before):
                await asyncio.sleep(0.05)
        assert (await looker.post({"agent": dev.agent, "method": "exec"})).status_code == 202
    finally:
        write_roles(path)
    async with asyncio.timeout(5):
        while (await looker.post({"agent": dev.agent, "method": "exec"})).status_code != 403:
            await asyncio.sleep(0.05)


async def test_a_caller_may_ask_what_it_may_do(
    gateway: GatewayProcess, api: GatewayApi, api_of: MakeGatewayApi, dev: ScriptedAgent, prod: ScriptedAgent
) -> None:
    ci, both = await caller_of(api_of, gateway, "ci"), await caller_of(api_of, gateway, "both", roles=["look"])

    async def may(asker: GatewayApi, **question: str) -> bool:
        answer = await asker.http.get("/v1/auth/can-i", params=question)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["allowed"])

    who = (await ci.http.get("/v1/auth/whoami")).json()
    assert (who["subject"], who["administrator"], who["roles"], who["unbound"]) == ("token:ci", False, ["deploy"], [])
    assert who["expires"] > "2026"
    assert (await both.http.get("/v1/auth/whoami")).json()["roles"] == ["look"]
    assert (await api.http.get("/v1/auth/whoami")).json() == {
        "subject": "shared-token", "administrator": True, "roles": [], "unbound": [], "expires": None,
        "issuer": None, "groups": [], "tenant": "default", "approvals": [],
    }  # fmt: skip
    assert await may(api, method="anything")
    assert await may(ci, method="exec", agent=dev.agent)
    assert not await may(ci, method="exec", agent=prod.agent)
    assert not await may(ci, method="exec", agent="unknown")
    assert await may(ci, method="exec", selector="env=dev")
    assert await may(ci, method="exec", selector="team=web,env in (dev)")
    for selector in ("env=prod", "env in (dev,prod)", "env", "env!=prod", "fact.env=dev", "team=web"):
        assert not await may(ci, method="exec", selector=selector), selector
    assert not await may(ci, method="exec")
    assert not await may(ci, method="shell", selector="env=dev")
    assert await may(ci, verb="label", selector="env=dev")
    assert not await may(ci, verb="tokens")
    assert (await ci.http.get("/v1/auth/can-i", params={"method": "exec"})).json()["rules"] == [
        {"role": "deploy", "agents": "env=dev"}
    ]
    for wrong in (
        {}, {"method": "a", "verb": "view"}, {"verb": "fly"}, {"method": "a", "agent": "a", "selector": "b"},
        {"verb": "tokens", "selector": "a"}, {"method": "a", "selector": "a b"}, {"method": ""},
    ):  # fmt: skip
        assert (await ci.http.get("/v1/auth/can-i", params=wrong)).status_code == 422, wrong
