"""Facts that an agent tells anew on its link: rows, histories and selectors have them, whatever happens to Redis."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from pathlib import Path

import pytest

from fairlead.agent.agent import Agent
from fairlead.agent.host import fact_reader
from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import FACT_COUNT, FACTS_LIMIT, Facts

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until


async def has_facts(api: GatewayApi, agent: str, facts: dict[str, str]) -> bool:
    answer = await api.http.get(f"/v1/agents/{agent}")
    return bool(answer.status_code == 200 and answer.json()["facts"] == facts)


async def listed(api: GatewayApi, selector: str) -> list[str]:
    answer = await api.http.get("/v1/agents", params={"selector": selector, "count": "true"})
    assert answer.status_code == 200, answer.text
    names = [agent["id"] for agent in answer.json()["agents"]]
    assert answer.json()["count"] == len(names)
    return names


async def test_changed_facts_are_in_the_row_its_history_and_the_columns(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent
) -> None:
    peer, fleet = await dial(gateway), secrets.token_hex(4)
    welcome = await peer.greet(facts={"fleet": fleet, "os.version": "9", "gone": "x"})
    assert welcome.caps.facts
    assert await listed(api, f"fleet={fleet},os.version<12") == [peer.agent]
    await peer.send(Facts({"os.version": "12", "gone": None}), Facts({"new": "1"}), Facts({"never": None}))
    await until(lambda: has_facts(api, peer.agent, {"fleet": fleet, "os.version": "12", "new": "1"}))
    assert await listed(api, f"fleet={fleet},os.version<12") == []
    assert await listed(api, f"fleet={fleet},os.version>=12,new,!gone") == [peer.agent]
    changed: dict[str, dict[str, str | None]] = {}
    for change in reversed((await api.agent(peer.agent))["fact_changes"]):
        changed |= change["facts"]
    assert changed == {
        "os.version": {"before": "9", "after": "12"}, "gone": {"before": "x", "after": None},
        "new": {"before": None, "after": "1"},
    }  # fmt: skip


async def test_a_row_with_other_facts_than_its_node_knows_is_brought_up_to_date(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, redis_of: RedisOf, shared_valkey: EmbeddedValkey
) -> None:
    """A failover may bring back an older row while the link lasts."""
    store, peer, fleet = await redis_of(shared_valkey), await dial(gateway), secrets.token_hex(4)
    await peer.greet(facts={"fleet": fleet, "os": "linux"})
    older = json.dumps({"fleet": fleet, "os": "bsd", "gone": "x"})
    await store.submit("HSET", agent_key(peer.agent), "facts", older)
    await peer.send(Facts({"new": "1"}))
    await until(lambda: has_facts(api, peer.agent, {"fleet": fleet, "os": "linux", "new": "1"}))
    assert await listed(api, f"fleet={fleet},os=linux,new,!gone") == [peer.agent]
    assert (await api.agent(peer.agent))["fact_changes"][0]["facts"] == {
        "os": {"before": "bsd", "after": "linux"}, "gone": {"before": "x", "after": None},
        "new": {"before": None, "after": "1"},
    }  # fmt: skip


async def test_facts_beyond_the_limits_close_the_link(gateway: GatewayProcess, dial: DialAgent) -> None:
    many = {f"f{n}": "x" for n in range(FACT_COUNT)}
    large = {f"f{n}": "x" * 250 for n in range(FACTS_LIMIT // 260)}
    for facts in (many, large):
        peer = await dial(gateway)
        await peer.greet(facts=facts)
        await peer.send(Facts({"f0": None, "g0": facts["f0"]}))  # as many and as long as before
        await peer.send(Facts({"g1": "x", "g2": "x" * 250}))
        assert await peer.close_code() == CloseCode.PROTOCOL


@pytest.mark.timeout(120)
async def test_facts_that_change_while_redis_is_lost_are_written_afterwards(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi, redis_of: RedisOf
) -> None:
    gateway = make_gateway(own_valkey.url)
    api, store = api_of(gateway), await redis_of(own_valkey)
    told, lost = await dial(gateway), await dial(gateway)
    for peer in (told, lost):
        await peer.greet(facts={"os": "linux"})

    async def refused() -> bool:
        return (await api.http.get(f"/v1/agents/{told.agent}")).status_code == 503

    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        await told.send(Facts({"os": "bsd"}))
        await until(refused)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    await until(lambda: has_facts(api, told.agent, {"os": "bsd"}))
    await lost.send(Facts({"os": "bsd"}))
    await until(lambda: has_facts(api, lost.agent, {"os": "bsd"}))
    await store.submit("FLUSHALL")  # so that the node claims its agents again
    for peer in (told, lost):
        await until(lambda name=peer.agent: has_facts(api, name, {"os": "bsd"}))  # type: ignore[misc]


async def test_a_link_that_was_replaced_writes_nothing(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, redis_of: RedisOf, shared_valkey: EmbeddedValkey
) -> None:
    """The facts of an older session never come after those of a newer one."""
    store, peer = await redis_of(shared_valkey), await dial(gateway)
    await peer.greet(facts={"os": "linux"})
    await store.submit("HSET", agent_key(peer.agent), "sid", "that of another node")
    other = await dial(gateway)
    await other.greet(facts={"os": "linux"})
    await peer.send(Facts({"os": "older"}))
    await other.send(Facts({"os": "bsd"}))  # written in the same round or a later one
    await until(lambda: has_facts(api, other.agent, {"os": "bsd"}))
    assert await has_facts(api, peer.agent, {"os": "linux"})


async def test_a_real_agent_tells_what_has_changed_on_its_host(
    gateway: GatewayProcess, api: GatewayApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_reader, "ROOT", tmp_path)
    monkeypatch.setattr(fact_reader, "PERIOD", 0.05)
    release, name = tmp_path / "etc/os-release", f"edge-{secrets.token_hex(4)}"
    release.parent.mkdir()
    release.write_text("ID=debian\nVERSION_ID=9\n")
    agent = Agent(gateway.link, name, "development-agent-token")
    serving = asyncio.create_task(agent.serve())
    try:
        for version in ("9", "12", "12.1"):
            release.write_text(f"ID=debian\nVERSION_ID={version}\n")

            async def shown(version: str = version) -> bool:
                answer = await api.http.get(f"/v1/agents/{name}")
                return answer.status_code == 200 and answer.json()["facts"].get("os.version") == version

            await until(shown)
    finally:
        agent.stop()
        async with asyncio.timeout(20):
            await serving
