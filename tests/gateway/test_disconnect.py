"""A LinkOperation's Disconnect on real nodes with real agents: who is disconnected, when, and what becomes of commands.

The operator's part is a directive in Redis, written by the operator's own code here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.agent import Agent, Command
from fairlead.audit.records import DIRECTIVE
from fairlead.audit.verification import read_lines
from fairlead.fleet.directives.disconnect import Disconnect, Disconnects
from fairlead.fleet.directives.disconnect_report import DisconnectReport
from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import TIMEOUT, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN
from support.waiting import until

pytestmark = pytest.mark.timeout(240)

COUNT = 6


class Member:
    """An agent of the SDK that counts what it runs."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.ran: Counter[str] = Counter()
        self.release = asyncio.Event()
        self.agent = Agent(url, name, AGENT_TOKEN, facts={"os": "linux"})
        self.serving = asyncio.create_task(self.agent.serve())

        @self.agent.command("count")
        async def count(command: Command) -> str:
            self.ran[command.id] += 1
            await command.write("stdout", b"before ")
            await self.release.wait()
            await command.write("stdout", b"after")
            return "done"

    async def stop(self) -> None:
        self.agent.stop()
        async with asyncio.timeout(TIMEOUT):
            await self.serving


class ConnectedFleet:
    def __init__(self, api: GatewayApi, members: list[Member], store: Pipeliner) -> None:
        self.api = api
        self.members = members
        self.store = store
        self.directives = Disconnects(store)

    async def links(self) -> dict[str, int]:
        """Which connection attempt each agent's link is, of those that are online."""
        answers = [await self.api.http.get(f"/v1/agents/{member.name}") for member in self.members]
        assert {answer.status_code for answer in answers} <= {200, 404}  # 404: it has not connected yet
        agents = [answer.json() for answer in answers if answer.status_code == 200]
        return {one["id"]: one["link"]["conn"] for one in agents if one["state"] == "online"}

    async def all_online(self) -> dict[str, int]:
        async with asyncio.timeout(TIMEOUT):
            while len(found := await self.links()) < len(self.members):
                await asyncio.sleep(0.1)
        return found

    async def until_through(self, wanted: Disconnect) -> list[DisconnectReport]:
        """Renews the directive, as the operator does in each pass, until both nodes are through."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                await self.directives.write(wanted)
                reported = list((await self.directives.progress(wanted.operation)).values())
                if len(reported) == 2 and not any(one.left for one in reported):
                    return reported
                await asyncio.sleep(0.2)


@pytest.fixture
async def fleet(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> AsyncIterator[ConnectedFleet]:
    """Two nodes with six agents each: half of them are labelled env=prod, the others env=test."""
    flags = ("--accept-rate=5000", "--audit-log", str(tmp_path / "audit"))
    nodes = [make_gateway(own_valkey.url, *flags, name=f"node-{n}") for n in (1, 2)]
    members = [Member(nodes[n % 2].link, f"agent-{n}") for n in range(2 * COUNT)]
    store = Pipeliner(own_valkey.url)
    store.start()
    assert await store.wait_available(TIMEOUT)
    fleet = ConnectedFleet(api_of(nodes[0]), members, store)
    await fleet.all_online()
    for n, member in enumerate(members):
        labels = {"env": "prod" if n // 2 % 2 else "test"}
        answer = await fleet.api.http.patch(f"/v1/agents/{member.name}", json={"labels": labels})
        assert answer.status_code == 200, answer.text
    yield fleet
    await asyncio.gather(*(member.stop() for member in members))
    await store.aclose()


async def test_matching_agents_of_all_nodes_are_disconnected_once_and_their_commands_go_on(
    fleet: ConnectedFleet, tmp_path: Path
) -> None:
    before = await fleet.all_online()
    prod = [member for n, member in enumerate(fleet.members) if n // 2 % 2]
    commands = {member.name: await fleet.api.start(member.name, "count", deadline=200) for member in prod}
    await until(lambda: all(member.ran for member in prod))

    unknown, *meant = prod
    await fleet.store.submit("HSET", agent_key(unknown.name), "labels_lost", 1)  # as after a loss of Redis' data
    wanted = Disconnect("uid-1", selector="env=prod,os=linux", rate=20.0, reason="new certificates")
    reported = await fleet.until_through(wanted)
    assert [one.total for one in reported] == [COUNT, COUNT]
    assert sum(one.closed for one in reported) == len(meant) == COUNT - 1
    assert sum(one.undecided for one in reported) == 1

    def audited(reason: str) -> list[tuple[str, str, str, str, int | None]]:
        lines = [line for line in read_lines(tmp_path / "audit") if (line.action, line.reason) == (DIRECTIVE, reason)]
        return [(line.subject, line.issuer, line.selector, line.detail, line.count) for line in lines]

    about = ("operator", "redis", "env=prod,os=linux", "uid-1: new certificates")
    assert audited("disconnect begins") == [(*about, COUNT)] * 2
    await until(lambda: sum(line[-1] or 0 for line in audited("disconnect ends")) == COUNT - 1)
    for _ in range(3):  # the directive still holds, and finds nothing more to do
        await fleet.directives.write(wanted)
        await asyncio.sleep(1)

    after = await fleet.all_online()
    again = {name for name in after if after[name] != before[name]}
    assert again == {member.name for member in meant}
    # Once: an agent that were disconnected on its new link as well would be at a later attempt.
    assert {after[member.name] - before[member.name] for member in meant} == {1}
    for member in meant:
        shown = await fleet.api.agent(member.name)
        assert shown["last_close"].startswith("4004"), shown
        assert shown["last_reason"] == "disconnected by the platform: new certificates"
    for member in prod:
        member.release.set()
    for name, command in commands.items():
        assert (await fleet.api.end(command))["state"] == "ok", name
        assert await fleet.api.output(command) == "before after"
    assert {tuple(member.ran.values()) for member in prod} == {(1,)}, "a command ran twice"


async def test_a_withdrawn_directive_closes_no_more_links(fleet: ConnectedFleet) -> None:
    before = await fleet.all_online()
    everybody = tuple(member.name for member in fleet.members)
    wanted = Disconnect("uid-2", agents=(*everybody, "nobody"), rate=1.0, retry_ms=0)
    async with asyncio.timeout(TIMEOUT):
        closed = 0
        while not closed:
            await fleet.directives.write(wanted)
            closed = sum(one.closed for one in (await fleet.directives.progress("uid-2")).values())
            await asyncio.sleep(0.05)
    await fleet.directives.withdraw()
    # What a node was granted just before may still be closed.
    settled = await fleet.all_online()
    await asyncio.sleep(6)  # as long as a node needs to look at the directive again, and six links at this rate
    after = await fleet.all_online()
    assert sum(after[name] != settled[name] for name in after) <= 2
    assert sum(after[name] != before[name] for name in after) < len(everybody)


async def test_an_expired_directive_closes_nothing(fleet: ConnectedFleet) -> None:
    before = await fleet.all_online()
    fields = ("operation", "uid-3", "selector", "", "agents", '["agent-1"]', "rate", "10", "retry", "", "reason", "")
    await fleet.store.submit("HSET", "fl1:disconnect", *fields, "began", 1 << 50, "until", 1)
    async with asyncio.timeout(TIMEOUT):
        while len(await fleet.directives.progress("uid-3")) < 2:
            await asyncio.sleep(0.1)
    assert sum(one.closed for one in (await fleet.directives.progress("uid-3")).values()) == 0
    assert await fleet.all_online() == before
