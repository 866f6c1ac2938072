"""Redis with users of its own: what a fleet does with the rights that `fairlead redis acl` prints, and nothing more."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.acl.rights import missing_rules
from fairlead.fleet.acl.users import USERS
from fairlead.fleet.directives.disconnect import Disconnect
from fairlead.fleet.directives.preferred_revision import PreferredRevision
from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.events.event_groups import EventGroups, GroupTerms
from fairlead.fleet.events.event_log import BEGINNING, EventLog, Position
from fairlead.fleet.tenants.tenant_use import TenantUse
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import Endpoint
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import items, octets, text
from fairlead.store.script import Script
from fairlead.tenant import qualified
from fairlead_operator.inputs.fleet_redis import FleetRedis

from support.fixtures import Connect, RedisOf
from support.gateway.enrolled_agent import CLI, EnrolledAgent
from support.gateway.main_road import MainRoad
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.rebalance_passes import RebalancePasses
from support.gateway.roles import write_roles
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

pytestmark = pytest.mark.timeout(240)

SELDOM = {
    "discard": "`fairlead redis check` alone", "multi": "`fairlead redis check` alone",
    "role": "a URL of Sentinels", "select": "a URL that names a database",
    "asking": "a Cluster whose slots move", "cluster|slots": "a Cluster",
    "sadd": "a failover", "smismember": "a failover", "zscan": "a failover",
    "wait": "durability", "waitaof": "durability",
    "hvals": "quotas of tenants", "zcard": "quotas of tenants", "zlexcount": "tenants",
    "zscore": "a command whose agent is silent for long",
}  # fmt: skip
"""Commands that the fleet of this test does not run, and who does."""


def fairlead(*arguments: str | Path) -> str:
    """What a command prints, whatever its exit code."""
    done = subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


class SharedRedis:
    """A Valkey with the users of `fairlead redis acl`, each with its name as password."""

    def __init__(self, server: EmbeddedValkey, admin: Pipeliner) -> None:
        self.server, self.admin = server, admin

    def url(self, user: str) -> str:
        return self.server.url.replace("unix://", f"unix://fairlead-{user}:{user}@")

    async def denied(self) -> list[str]:
        """What was denied since the last call, and to whom."""
        entries = [items(entry) for entry in items(await self.admin.submit("ACL", "LOG", 1000))]
        await self.admin.submit("ACL", "LOG", "RESET")
        facts = [dict(zip(map(octets, entry[::2]), entry[1::2], strict=True)) for entry in entries]
        return [f"{text(one[b'username'])}: {text(one[b'object'])}" for one in facts]

    async def used(self) -> set[str]:
        """The commands that were run since the last call, as rules name them."""
        found = re.findall(r"cmdstat_([a-z_|]+):calls=([0-9]+)", text(await self.admin.submit("INFO", "commandstats")))
        await self.admin.submit("CONFIG", "RESETSTAT")
        own = {"info", "config|resetstat", "acl|log", "acl|setuser", "auth", "hello"}
        return {name for name, calls in found if int(calls)} - (own - {"info"})


@pytest.fixture
async def redis(own_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path) -> SharedRedis:
    files: list[str | Path] = []
    for user in USERS:
        (tmp_path / user).write_text(f"{user}\n")
        files += [f"--{user}-password-file", tmp_path / user]
    made = SharedRedis(own_valkey, await redis_of(own_valkey))
    for line in fairlead("redis", "acl", "--commands", *files).splitlines():
        assert await made.admin.submit(*line.split()) == b"OK"
    await made.used()
    return made


@pytest.fixture
def issuer_key(tmp_path: Path) -> Path:
    key = tmp_path / "issuer.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True, capture_output=True)
    return key


@pytest.fixture
def agents() -> Iterator[list[EnrolledAgent]]:
    started: list[EnrolledAgent] = []
    yield started
    for one in started:
        one.stop()


@pytest.fixture
async def operator() -> AsyncIterator[FleetRedis]:
    made = FleetRedis()
    yield made
    await made.aclose()


async def test_a_fleet_needs_what_the_rules_allow_and_nothing_else(
    redis: SharedRedis, make_gateway: MakeGateway, api_of: MakeGatewayApi, agents: list[EnrolledAgent],
    operator: FleetRedis, issuer_key: Path, tmp_path: Path,
) -> None:  # fmt: skip
    write_roles(tmp_path / "roles.yaml")
    flags = ("--issuer-key", str(issuer_key), "--roles", str(tmp_path / "roles.yaml"), "--heartbeat=1")
    nodes = [make_gateway(redis.url("node"), *flags, name=name) for name in ("node-1", "node-2")]
    road = MainRoad(nodes, api_of(nodes[0]), agents, tmp_path)
    await road.enrol()
    await road.command()
    await road.run()
    await road.join()
    await road.schedule()
    await road.ask()
    await road.leave()
    await redis.admin.submit("DEL", schema.REVOKED_KEYS)  # as a Redis that has lost it

    async def restored() -> bool:
        return bool(await redis.admin.submit("EXISTS", schema.REVOKED_KEYS))

    await until(restored)
    await redis.admin.submit("SET", schema.NODES, "of another type")

    async def repaired() -> bool:
        return await redis.admin.submit("TYPE", schema.NODES) == b"zset"

    await until(repaired)
    for node in nodes:
        node.stop()
    assert await redis.denied() == []
    await used_by("node", redis)
    await rule(operator, redis)
    assert await redis.denied() == []
    await used_by("operator", redis)
    found = json.loads(fairlead("store", "--redis", redis.url("store"), "-o", "json"))
    assert found["kinds"]["fl2:cmd"]["keys"] > 0
    assert await redis.denied() == []
    await used_by("store", redis)


async def test_a_node_may_do_what_tenants_need(redis: SharedRedis, connect: Connect) -> None:
    store = await connect(redis.url("node"))
    use, events, agent = TenantUse(store), EventLog(store), qualified("acme", "web-1")
    assert await use.admit_agent("acme", agent, 1, 2) == ("ok", 0)
    assert await use.admit_command("acme", "command", 1 << 50, 2, 100) == ("ok", 0)
    assert await use.admit_run("acme", "run", 3, 1 << 50, 5) == ("ok", 0)
    shown = await use.known_agents("acme"), await use.open_commands("acme", 1), await use.run_concurrency("acme", 1)
    assert shown == (0, 1, 3)
    await use.end_command("acme", "command")
    await use.end_run("acme", "run")
    await use.remove_agent("acme", agent)
    await events.add(agent, "disk.full", "1", 1, b"{}", 1 << 20)
    assert [one.agent for one in (await events.read("acme", BEGINNING, 10, 1 << 20)).events] == [agent]
    groups, step = EventGroups(store), (BEGINNING, Position(1, 1))
    assert await groups.open("acme", "readers", "me", GroupTerms(), BEGINNING) == ("me", GroupTerms())
    assert await groups.take("acme", "readers", "r", step, 1, 1_000, [step[1]]) == "ok"
    found = await groups.take_due("acme", "readers", "r", 10, 1_000, 64, 1 << 20)
    assert found is not None
    assert (found.at, found.room) == (step[1], 9)
    assert await groups.acknowledge("acme", "readers", "me", [step[1]]) == 1
    assert [one.name for one in await groups.list("acme")] == ["readers"]
    await groups.remove("acme", "readers")
    assert await events.remove(agent) == 1
    assert await redis.denied() == []


async def used_by(user: str, redis: SharedRedis) -> None:
    """The commands since the last call are those of `user`."""
    used = await redis.used()
    assert set(USERS[user].commands) - used - set(SELDOM) == set(), "rules that nothing needs"


async def rule(operator: FleetRedis, redis: SharedRedis) -> None:
    """All that an operator reads and writes."""
    passes = RebalancePasses(redis.url("operator"))
    passes.redis = operator
    nodes = await passes.read()
    assert set(nodes.rows) == {"node-1", "node-2"}
    await operator.prefer(PreferredRevision("abc", nodes.now))
    await operator.write_rebalance({"node-1": RebalanceTarget(10, 5)})
    await operator.write_rebalance({})
    for _ in range(2):
        await operator.write_disconnect(Disconnect("op", agents=("web-1",), began=nodes.now))
    await operator.disconnect_progress("op")
    await operator.withdraw_disconnect()
    await operator.set_move_rate(1.0, 2.0, nodes.now)
    await operator.write_history(b"{}")
    assert await operator.read_history(10) == b"{}"


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("operator", ("HSET", schema.cmd_key("0A0000000000000000000000"), "state", "ok")),
        ("operator", ("HSET", schema.SERVICE_TOKENS, "forged", "{}")),
        ("operator", ("HGETALL", schema.SERVICE_TOKENS)),
        ("operator", ("HSET", schema.node_key("node-1"), "links", 0)),
        ("operator", ("XADD", "fl1:inbox:{node-1#a}", "*", "d", "x")),
        ("operator", ("SET", schema.bound_key("web-1"), "key")),
        ("node", ("SET", schema.SCALING_HISTORY, "{}")),
        ("node", ("HSET", schema.REVISION, "name", "x")),
        ("node", ("SET", "somebody:else", "x")),
        ("node", ("KEYS", "*")),
        ("node", ("FLUSHALL",)),
        ("node", ("CONFIG", "SET", "maxmemory", "1")),
        ("node", ("ACL", "WHOAMI")),
        ("node", ("PUBLISH", "channel", "x")),
        ("store", ("DEL", schema.NODES)),
        ("store", ("SET", schema.NODES, "x")),
        ("store", ("EVAL", "return 1", 0)),
    ],
)
async def test_what_a_user_does_not_need_is_denied(
    redis: SharedRedis, connect: Connect, user: str, command: tuple[str | int, ...]
) -> None:
    store = await connect(redis.url(user))
    with pytest.raises(BusUnavailable, match="lacks a permission"):
        await store.submit(*command)
    denied = " ".join(await redis.denied())
    assert denied.startswith(f"fairlead-{user}: ")


async def test_a_script_has_no_more_rights_than_its_user(redis: SharedRedis, connect: Connect) -> None:
    store = await connect(redis.url("operator"))
    script = Script("forge", f"#!lua\nreturn redis.call('HSET', '{schema.SERVICE_TOKENS}', 'forged', '{{}}')\n")
    with pytest.raises(BusUnavailable, match="add the pattern of the key to its rules"):
        await store.run(script, (), ())
    script = Script("flush", "#!lua\nreturn redis.call('FLUSHALL')\n")
    with pytest.raises(BusUnavailable, match=r"add the rule \+flushall to it \(`fairlead redis acl`"):
        await store.run(script, (), ())


@pytest.mark.parametrize("user", list(USERS))
async def test_a_rule_that_is_missing_is_named(redis: SharedRedis, user: str, tmp_path: Path) -> None:
    async def missing() -> list[str]:
        connection = await Endpoint(redis.url(user)).connect(10)
        try:
            return await missing_rules(connection, USERS[user])
        finally:
            await connection.close()

    assert await missing() == []
    name = f"fairlead-{user}"
    for rule in USERS[user].rules():
        if rule[0] in "~%+":
            await redis.admin.submit("ACL", "SETUSER", name, *without(rule, user))
            if rule not in ("+ping", "+client|setname"):  # without these there is no connection
                assert await missing() == [rule]
            await redis.admin.submit("ACL", "SETUSER", name, *USERS[user].rules())
    shown = await asyncio.to_thread(fairlead, "redis", "check", "--user", user, "--redis", redis.url(user))
    assert re.search(rf"fairlead-{user} may do everything that .* needs$", shown, re.MULTILINE)


def without(rule: str, user: str) -> list[str]:
    """All rules of a user but one."""
    return [one for one in USERS[user].rules() if one != rule]


async def test_check_says_which_rules_to_add(redis: SharedRedis) -> None:
    await redis.admin.submit("ACL", "SETUSER", "fairlead-node", "-hset", "-xadd")
    shown = await asyncio.to_thread(fairlead, "redis", "check", "--redis", redis.url("node"))
    assert "ACL SETUSER fairlead-node +hset +xadd" in shown
    url = redis.url("node").replace(":node@", ":wrong@")
    wrong = await asyncio.to_thread(fairlead, "redis", "check", "--redis", url, "-o", "json")
    (first, *_) = json.loads(wrong)["checks"]
    assert "it refuses the password of the address" in first["message"]
    assert first["advice"] == "set user and password in the URL: rediss://USER:PASSWORD@HOST"


async def test_a_node_whose_user_lacks_a_right_says_which_and_goes_on_when_it_has_it(
    redis: SharedRedis, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    gateway = await asyncio.to_thread(make_gateway, redis.url("node"))
    api = api_of(gateway)
    agent = await dial(gateway)
    await agent.greet()
    await redis.admin.submit("ACL", "SETUSER", "fairlead-node", "-xadd", "-hsetnx", "-rpush", "-hset")
    refused = await api.post({"agent": agent.agent, "method": "work"})
    assert refused.status_code == 503
    assert "add the rule +hset to it" in refused.json()["detail"]
    await redis.admin.submit("ACL", "SETUSER", "fairlead-node", *USERS["node"].rules())
    await api.start(agent.agent)
    await agent.command()
