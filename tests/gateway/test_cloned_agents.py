"""Two copies of the shipped agent with one key, as after a cloned disk, at two real nodes: they are found out, told
and, if the policy says so, refused until the agent enrols anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.audit.records import AuditLine
from fairlead.audit.verification import read_lines
from fairlead.fleet.schema import agent_key
from fairlead.routing.agents.cloned_agents import ClonedAgents
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.telemetry.metrics import Metrics

from support.fixtures import RedisOf
from support.gateway.enrolled_agent import EnrolledAgent, cli, new_token, until_state
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until


class Clones:
    """Two nodes, the agent web-1 at the first one, and a copy of its disk at the second one."""

    def __init__(self, nodes: list[GatewayProcess], api: GatewayApi, folder: Path) -> None:
        self.nodes, self.api, self._folder = nodes, api, folder
        self.agents: list[EnrolledAgent] = []

    async def start(self) -> None:
        token = await new_token(self.nodes[0], "*", "--uses", "9")
        self.agents.append(EnrolledAgent(self.nodes[0], self._folder / "original", "web-1", token))
        await until_state(self.api, "web-1", "online")
        await until((self.agents[0].folder / "session").exists)
        shutil.copytree(self.agents[0].folder, self._folder / "copy")

    async def take_turns(self, turns: int) -> None:
        """Start the copies in turn, as supervisors do, the copy first: the one that is linked ends each time."""
        for turn in range(turns):
            if turn:
                self.agents[turn % 2 == 0].start()
            else:
                self.agents.append(EnrolledAgent(self.nodes[1], self._folder / "copy", "web-1"))
            other = self.agents[turn % 2]
            assert other.wait() == 3, other.log
            assert "4507" in other.log
            await until_state(self.api, "web-1", "online")
            sid, stored = (await self.api.agent("web-1"))["link"]["sid"], self.agents[turn % 2 == 0].folder / "session"
            await until(lambda sid=sid, stored=stored: stored.read_text().strip() == sid)  # type: ignore[misc]

    def audited(self) -> list[AuditLine]:
        lines = [line for node in ("a", "b") for line in read_lines(self._folder / f"audit-{node}")]
        return [line for line in lines if line.action == "agentCloned"]

    async def events(self) -> list[dict[str, object]]:
        answer = await self.api.http.get("/v1/events", headers={"accept": "application/x-ndjson"})
        found = [json.loads(line) for line in answer.text.splitlines()]
        return [one for one in found if one.get("type") == "fairlead.agent.cloned"]

    async def counted(self, name: str) -> float:
        return sum([await metric(node, name) for node in self.nodes])


@pytest.fixture(params=["tell", "hold"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def clones(
    policy: str, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> AsyncIterator[Clones]:
    key = make_issuer_key(tmp_path)
    nodes = [
        make_gateway(
            own_valkey.url, "--issuer-key", str(key), "--clone-policy", policy, "--audit-log",
            str(tmp_path / f"audit-{name}"), name=name,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    made = Clones(nodes, api_of(nodes[0]), tmp_path)
    await made.start()
    yield made
    for agent in made.agents:
        agent.stop()


@pytest.mark.parametrize("policy", ["tell"], indirect=True)
async def test_two_copies_are_told_and_take_turns_slowly(
    clones: Clones, own_valkey: EmbeddedValkey, redis_of: RedisOf
) -> None:
    await clones.take_turns(3)
    assert (await clones.api.agent("web-1"))["cloned"] is None
    since = (await clones.api.agent("web-1"))["since"]
    clones.agents[0].start()
    waiting, linked = clones.agents[0], clones.agents[1]
    await until(lambda: "4009 (another copy of this agent has the link: reconnect later)" in waiting.log)
    found = await clones.api.agent("web-1")
    assert (found["state"], found["since"]) == ("online", since), "the one that is linked stays"
    assert found["cloned"] is not None
    listed = await cli(clones.nodes[0], "agents", "ls")
    assert f"cloned: two copies used its key at {found['cloned']}" in listed.stdout
    why = await cli(clones.nodes[0], "why", "web-1")
    assert f"! two copies used its key, last at {found['cloned']}: a cloned disk" in why.stdout
    await until(lambda: clones.audited() != [])
    (line,) = clones.audited()
    assert (line.subject, line.outcome, line.agent) == ("agent:web-1", "allowed", "web-1")

    async def told() -> bool:
        return await clones.events() != []

    await until(told)
    assert [one["data"] for one in await clones.events()] == [{"key": line.detail.split()[1], "revoked": False}]
    assert await clones.counted("fairlead_cloned_agents_total") == 1
    assert await clones.counted("fairlead_outdated_sessions_total") == 1
    # The copy goes, and the one that was kept out has the link without waiting for its minute.
    linked.stop()
    waiting.stop()
    await until_state(clones.api, "web-1", "away")
    waiting.start()
    await until_state(clones.api, "web-1", "online")
    assert await clones.counted("fairlead_cloned_agents_total") == 1, "told once"
    # The row knows that it was told. If the node had died before that, the next claim would have it told.
    store = await redis_of(own_valkey)

    async def row_knows() -> bool:
        return await store.submit("HGET", agent_key("web-1"), "untold") is None

    await until(row_knows)
    waiting.stop()
    await until_state(clones.api, "web-1", "away")
    await store.submit("HSET", agent_key("web-1"), "untold", 1)
    waiting.start()
    await until(lambda: len(clones.audited()) == 2)
    await until(row_knows)


@pytest.mark.parametrize("policy", ["hold"], indirect=True)
async def test_a_key_with_two_copies_is_revoked_until_the_agent_enrols_anew(
    clones: Clones, own_valkey: EmbeddedValkey, redis_of: RedisOf, tmp_path: Path
) -> None:
    await clones.take_turns(3)
    clones.agents[0].start()
    for agent in clones.agents:  # one at its claim, and the other one on another node while it is linked
        assert agent.wait() == 3, agent.log
        assert "4504" in agent.log
    assert "two copies of this agent used its key, so it was revoked" in clones.agents[0].log
    found = await clones.api.agent("web-1")
    assert (found["state"] != "online", found["cloned"] is not None) == (True, True)
    await until(lambda: [line.outcome for line in clones.audited()] == ["denied"])
    for agent in clones.agents:
        agent.start()
        await until(lambda agent=agent: "401 (the key of agent web-1 was revoked" in agent.log)  # type: ignore[misc]
        agent.stop()
    assert (await cli(clones.nodes[0], "agents", "release", "web-1")).returncode == 0
    await (await redis_of(own_valkey)).submit("FLUSHALL")  # the nodes know which key was revoked, and write it back
    copy, refusal = clones.agents[1], "401 (the key of agent web-1 was revoked"
    before = copy.log.count(refusal)
    copy.start()
    await until(lambda: copy.log.count(refusal) > before)
    copy.stop()
    anew = EnrolledAgent(clones.nodes[0], tmp_path / "anew", "web-1", await new_token(clones.nodes[0], "*"))
    clones.agents.append(anew)
    await until_state(clones.api, "web-1", "online")
    assert (await clones.api.agent("web-1"))["cloned"] is None
    assert await clones.counted("fairlead_cloned_agents_total") == 1


async def test_sessions_that_are_out_of_date_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One agent may show such a session on every link that it opens."""
    nothing: Any = None
    cloned = ClonedAgents(nothing, nothing, None, nothing, nothing, Metrics())
    session: Any = SimpleNamespace(agent="web-1")
    for _ in range(100):
        cloned.outdated(session)
    assert caplog.text.count("agent web-1 showed a session that is out of date") == 1
    cloned.aclose()
    assert "sessions out of date: 99 more" in caplog.text


async def test_a_session_that_is_not_in_the_proof_opens_no_link(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, tmp_path: Path
) -> None:
    """Whoever changes or removes the session on the way cannot make an agent look like a copy."""
    store = await redis_of(own_valkey)
    site = IdentitySite(make_gateway(own_valkey.url, "--issuer-key", str(make_issuer_key(tmp_path))), store)
    key = new_key()
    credential = await site.credential("web-1", key)
    first = await site.link("web-1", credential, key)
    assert first.welcome is not None
    sid = first.welcome.sid
    before = await store.submit("HGETALL", agent_key("web-1"))
    for shown, proved in ((sid, ""), ("", sid), ("x" * 16, sid), ("two\nlines", "")):
        assert await site.close_code("web-1", credential, key=key, session=shown, proved=proved) == 4503
    assert await store.submit("HGETALL", agent_key("web-1")) == before
    await site.link("web-1", credential, key, conn=2, session=sid)
    await site.aclose()
