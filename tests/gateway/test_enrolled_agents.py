"""The shipped agent with an identity of its own: it enrols, proves its key, renews, and is told why if it may not."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.enrolled_agent import EnrolledAgent, cli, new_token, state, until_state
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import caller_of, denied, write_roles
from support.waiting import until

LIFETIME = 60.0
"""Seconds: the shortest life of a credential."""


@pytest.fixture
def agents() -> Iterator[list[EnrolledAgent]]:
    started: list[EnrolledAgent] = []
    yield started
    for one in started:
        one.stop()


@pytest.fixture
def gateway(own_valkey: EmbeddedValkey, make_gateway: MakeGateway, tmp_path: Path) -> GatewayProcess:
    key = tmp_path / "issuer.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True)
    write_roles(tmp_path / "roles.yaml")
    flags = ("--issuer-key", str(key), "--credential-lifetime", str(LIFETIME), "--roles", str(tmp_path / "roles.yaml"))
    return make_gateway(own_valkey.url, *flags)


async def test_an_agent_enrols_once_and_comes_back_with_its_key_alone(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    api = api_of(gateway)
    token = await new_token(gateway, "web-*", "--uses", "1")
    agent = EnrolledAgent(gateway, tmp_path / "web-1", "web-1", token)
    agents.append(agent)
    await until_state(api, "web-1", "online")
    done = await cli(gateway, "exec", "-n", "web-1", "--", "echo", "enrolled")
    assert done.stdout == "enrolled\n", done.stderr
    await until((agent.folder / "session").exists)
    assert {path.name: path.stat().st_mode & 0o777 for path in agent.folder.iterdir()} == {
        "key.pem": 0o600, "credential.json": 0o600, "session": 0o600,
    }  # fmt: skip
    assert token not in str(psutil.Process(agent.pid).environ())
    for method, payload in (("file.get", {"path": str(agent.folder / "key.pem")}),):
        end = await api.end(await api.start("web-1", method, payload=payload))
        assert end["state"] == "failed", "the platform reads no key"
    agent.stop()
    await until_state(api, "web-1", "away")
    agent.start()
    await until_state(api, "web-1", "online")
    listed = await cli(gateway, "enrolment-tokens", "ls")
    assert "1 of 1" in listed.stdout
    secret = token.rpartition("_")[2]
    assert secret not in listed.stdout + agent.log + gateway.log()


async def test_an_agent_has_the_labels_of_its_token_and_keeps_those_that_the_platform_sets(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path, redis_of: RedisOf,
    own_valkey: EmbeddedValkey,
) -> None:  # fmt: skip
    api = api_of(gateway)
    token = await new_token(gateway, "web-*", "-l", "env=prod", "--label", "zone=a")
    agent = EnrolledAgent(gateway, tmp_path / "web-1", "web-1", token)
    agents.append(agent)
    await until_state(api, "web-1", "online")
    assert (await api.agent("web-1"))["labels"] == {"env": "prod", "zone": "a"}
    listed = await cli(gateway, "enrolment-tokens", "ls", "-o", "wide")
    assert "env=prod,zone=a" in listed.stdout
    assert (await cli(gateway, "agents", "label", "web-1", "zone=b", "env-")).returncode == 0
    agent.stop()
    await until_state(api, "web-1", "away")
    agent.start()
    await until_state(api, "web-1", "online")
    assert (await api.agent("web-1"))["labels"] == {"zone": "b"}, "its credential says otherwise, and is not asked"
    # An agent that was removed comes back as it enrolled.
    agent.stop()
    await until_state(api, "web-1", "away")
    store = await redis_of(own_valkey)
    await store.submit("DEL", agent_key("web-1"))
    agent.start()
    await until_state(api, "web-1", "online")
    assert (await api.agent("web-1"))["labels"] == {"env": "prod", "zone": "a"}


async def test_an_agent_waits_until_it_is_approved(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    token = await new_token(gateway, "web-*", "--uses", "9", "--approval")
    agents += [EnrolledAgent(gateway, tmp_path / name, name, token) for name in ("web-1", "web-2")]

    async def waiting() -> list[dict[str, str]]:
        found = json.loads((await cli(gateway, "agents", "pending", "-o", "json")).stdout)["agents"]
        return [one for one in found if one["state"] == "pending"]

    async def both_wait() -> bool:
        return len(await waiting()) == 2

    await until(both_wait)
    first, second = await waiting()
    assert (first["agent"], first["address"]) == ("web-1", "127.0.0.1")
    await until(lambda: f"agent web-1 with key {first['key']} waits for an administrator" in agents[0].log)
    wrong = await cli(gateway, "agents", "approve", "--key", second["key"], "web-1")
    assert (wrong.returncode, "waits for an approval" in wrong.stderr) == (2, True)
    assert (await cli(gateway, "agents", "deny", "web-2")).returncode == 0
    assert f"approved web-1 with the key {first['key']}" in (await cli(gateway, "agents", "approve", "web-1")).stderr
    await until_state(api_of(gateway), "web-1", "online")
    await until(lambda: "answered 403: an administrator has denied agent web-2" in agents[1].log)
    assert await waiting() == []
    assert await state(api_of(gateway), "web-2") == "unknown"


async def test_a_token_with_a_rate_enrols_slowly(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    token = await new_token(gateway, "web-*", "--uses", "9", "--rate", "2/m")
    assert "  2/m  " in (await cli(gateway, "enrolment-tokens", "ls", "-o", "wide")).stdout
    for name in ("web-1", "web-2"):
        agents.append(EnrolledAgent(gateway, tmp_path / name, name, token))
        await until_state(api_of(gateway), name, "online")
    agents.append(EnrolledAgent(gateway, tmp_path / "web-3", "web-3", token))
    await until(lambda: "answered 429: enrolment token" in agents[2].log)
    assert "enrols 2 agents a minute: try again later" in agents[2].log
    wrong = await cli(gateway, "enrolment-tokens", "create", "--rate", "fast", "web-*")
    assert (wrong.returncode, "expected such as 10/m or 2/s" in wrong.stderr) == (2, True)


async def test_only_an_administrator_grants_labels(gateway: GatewayProcess, api_of: MakeGatewayApi) -> None:
    api = api_of(gateway)
    caller = await caller_of(api_of, gateway, "enroller")
    order = {"agents": "web-*", "labels": {"env": "prod"}}
    denial = denied(await caller.http.post("/v1/enrolment-tokens", json=order))
    assert "labels give rights: expected an administrator" in denial
    assert (await caller.http.post("/v1/enrolment-tokens", json={"agents": "web-*"})).status_code == 201
    for labels, expected in (
        ({"a b": "c"}, "labels"),
        ({f"key-{n}": "v" * 60 for n in range(16)}, "bytes as JSON: expected 512 at most"),
        ({f"k{n}": "v" for n in range(17)}, "labels"),
    ):
        answer = await api.http.post("/v1/enrolment-tokens", json={"agents": "*", "labels": labels})
        assert (answer.status_code, expected in answer.json()["detail"]) == (422, True), answer.text
    answer = await api.http.get("/v1/enrolment-tokens")
    assert [token["labels"] for token in answer.json()["tokens"]] == [{}]


async def test_another_key_does_not_get_the_id_until_it_is_released(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    api = api_of(gateway)
    token = await new_token(gateway, "*", "--uses", "10")
    agents.append(EnrolledAgent(gateway, tmp_path / "first", "db-1", token))
    await until_state(api, "db-1", "online")
    since = (await api.agent("db-1"))["since"]
    agents.append(EnrolledAgent(gateway, tmp_path / "second", "db-1", token))
    await until(lambda: "is bound to another key" in agents[1].log)
    assert (await api.agent("db-1"))["since"] == since, "the real agent stays"
    agents[1].stop()
    agents[0].stop()
    released = await cli(gateway, "agents", "release", "db-1")
    assert released.returncode == 0, released.stderr
    agents[1].start(token)
    await until_state(api, "db-1", "online")
    agents[0].start()
    assert agents[0].wait() == 3, agents[0].log  # the gateway does not want it back
    assert await state(api, "db-1") == "online"
    assert (await cli(gateway, "agents", "release", "nobody")).returncode != 0
    revoked = await cli(gateway, "agents", "revoke", "db-1")
    assert revoked.returncode == 0, revoked.stderr
    assert agents[1].wait() == 3, agents[1].log
    assert "4504" in agents[1].log
    assert agents[1].log.count("the agent's key was revoked") == 1, "the reason is told once"


async def test_refusals_say_what_to_do(gateway: GatewayProcess, agents: list[EnrolledAgent], tmp_path: Path) -> None:
    used = await new_token(gateway, "used-*", "--uses", "1")
    agents.append(EnrolledAgent(gateway, tmp_path / "used-1", "used-1", used))
    await until(lambda: "enrolled as used-1" in agents[0].log)
    revoked = await new_token(gateway, "*")
    assert (await cli(gateway, "enrolment-tokens", "revoke", revoked.split("_")[2])).returncode == 0
    cases = {
        "used-2": (used, "has enrolled as many agents as it may (1): ask for a new one"),
        "other-1": (used, "is for ids like used-*"),
        "late-1": (revoked, "wrong enrolment token: expected one that was created for this fleet"),
        "false-1": (f"{used[:-3]}AAA", "wrong enrolment token"),
        "none-1": ("", "agent none-1 is not enrolled: expected an enrolment token"),
        "text-1": ("no-token", "invalid enrolment token: expected text that begins with fl_enrol_"),
    }
    for id, (token, expected) in cases.items():
        agents.append(EnrolledAgent(gateway, tmp_path / id, id, token))
        await until(lambda expected=expected: expected in agents[-1].log)  # type: ignore[misc]
        agents[-1].stop()
    assert used not in gateway.log()


async def test_a_credential_is_renewed_before_it_expires_and_after_the_agent_was_away(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    api = api_of(gateway)
    agent = EnrolledAgent(gateway, tmp_path / "web-1", "web-1", await new_token(gateway, "*"))
    agents.append(agent)
    await until_state(api, "web-1", "online")
    first = agent.stored
    agent.stop()

    def backdate(seconds: float) -> None:
        stored = agent.stored
        stored["obtained"] = float(str(stored["obtained"])) - seconds
        (agent.folder / "credential.json").write_text(json.dumps(stored))

    backdate(LIFETIME * 0.9)  # the agent renews it while it is linked
    agent.start()
    await until(lambda: agent.stored["credential"] != first["credential"])
    await until_state(api, "web-1", "online")
    agent.stop()
    second = agent.stored["credential"]
    backdate(LIFETIME * 100)  # and before it connects if it has expired
    agent.start()
    await until(lambda: agent.stored["credential"] != second)
    await until_state(api, "web-1", "online")
    agent.stop()
    (agent.folder / "credential.json").write_text("cut off")
    agent.start(await new_token(gateway, "*"))  # without a credential the key enrols again, and has its id
    await until_state(api, "web-1", "online")


async def test_a_copy_of_the_folder_belongs_to_the_same_agent_only(
    gateway: GatewayProcess, api_of: MakeGatewayApi, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    api = api_of(gateway)
    agents.append(EnrolledAgent(gateway, tmp_path / "web-1", "web-1", await new_token(gateway, "*")))
    await until_state(api, "web-1", "online")
    shutil.copytree(tmp_path / "web-1", tmp_path / "web-2")
    other = EnrolledAgent(gateway, tmp_path / "web-2", "web-2")
    agents.append(other)
    await until(lambda: "holds the identity of agent web-1, and this agent's id is web-2" in other.log)
    assert await state(api, "web-2") == "unknown"
    other.stop()
    (tmp_path / "web-2" / "key.pem").chmod(0o644)
    other.start()
    await until(lambda: "can be used by others on this host" in other.log)


async def test_who_may_create_enrolment_tokens(gateway: GatewayProcess, api_of: MakeGatewayApi, tmp_path: Path) -> None:
    admin = api_of(gateway)
    looker = await caller_of(api_of, gateway, "looker")
    for method, path in (
        ("GET", "/v1/enrolment-tokens"), ("POST", "/v1/enrolment-tokens"),
        ("DELETE", "/v1/enrolment-tokens/0123456789ab"), ("DELETE", "/v1/agents/web-1/key"),
    ):  # fmt: skip
        assert "enrolment" in denied(await looker.http.request(method, path, json={"agents": "*"}))
    for wrong in ({"agents": "web 1"}, {"agents": "*****"}, {"agents": "*", "uses": 0}, {"agents": "*", "lifetime": 1}):
        assert (await admin.http.post("/v1/enrolment-tokens", json=wrong)).status_code == 422
    token = await new_token(gateway, "*")
    wrong_id = await admin.http.delete(f"/v1/enrolment-tokens/{token}")
    assert wrong_id.status_code == 422
    assert token.rpartition("_")[2] not in wrong_id.text
    missing = await admin.http.delete("/v1/enrolment-tokens/0123456789ab")
    assert missing.status_code == 404


async def test_a_gateway_without_an_issuer_key_says_so(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, agents: list[EnrolledAgent], tmp_path: Path
) -> None:
    gateway = make_gateway(own_valkey.url)
    refused = await cli(gateway, "enrolment-tokens", "create", "*")
    assert refused.returncode != 0
    assert "this gateway enrols no agents: expected the setting issuer_key" in refused.stderr
    agents.append(EnrolledAgent(gateway, tmp_path / "a", "a", f"fl_enrol_{0:012x}_{'A' * 43}"))
    await until(lambda: "/v1/enrolments answered 404" in agents[0].log)
