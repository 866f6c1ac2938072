"""A node has no more connections to Redis than docs/operations.md says, whatever it does, and after a failover too.

All that it has are counted, of whatever kind: those of its process to the ports of the servers. They are looked at ten
times a second, so one that is closed at once may be missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

from fairlead.wire.messages import Ack, Cmd, End, Event

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.cluster import Cluster
from support.valkey.replication import Replication
from support.valkey.server import PASSWORD, ValkeyServer
from support.waiting import until

pytestmark = pytest.mark.timeout(240)
AGENTS = 12
"""So many that each primary of a Cluster has some of them."""


class Connections:
    """The connections that the process of a node has to each of these ports: now, and the most that were seen at
    once."""

    def __init__(self, gateway: GatewayProcess, ports: Iterable[int]) -> None:
        self._gateway = gateway
        self._ports = frozenset(ports)
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.most_in_all = 0

    def look(self) -> None:
        process = Path("/proc") / str(self._gateway.pid)
        own = set()
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                own.add(str(descriptor.readlink()))
        found = set()
        for line in (process / "net" / "tcp").read_text().splitlines()[1:]:
            words = line.split()
            port, socket = int(words[2].rpartition(":")[2], 16), f"socket:[{words[9]}]"
            if port in self._ports and socket in own:
                found.add((port, socket))  # a line may stand there twice, because connections change meanwhile
        now = Counter(port for port, _ in found)
        self.most |= now
        self.most_in_all = max(self.most_in_all, now.total())
        self.now = now  # whoever sees it finds it among the most, too

    async def watch(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(0.1)

    def are(self, expected: dict[int, int]) -> bool:
        return self.now == expected


@asynccontextmanager
async def watched(gateway: GatewayProcess, ports: Iterable[int]) -> AsyncIterator[Connections]:
    connections = Connections(gateway, ports)
    watch = asyncio.create_task(connections.watch())
    try:
        yield connections
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def serve(peer: ScriptedAgent) -> None:
    """Answer all commands, each with an event."""
    while True:
        command = (await peer.expect(Cmd)).id
        await peer.send(Ack(id=command), Event(id=command, type="done", qos=1, payload=b"1"))
        await peer.send_output(command, 0, "all of it")
        await peer.send(End(id=command, total=1, state="ok"))


@asynccontextmanager
async def busy(gateway: GatewayProcess, dial: DialAgent, api: GatewayApi) -> AsyncIterator[None]:
    """Agents at the node that answer commands, and a reader of their events."""
    peers = [await dial(gateway, f"host-{number}") for number in range(AGENTS)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    tasks = [*(asyncio.create_task(serve(peer)) for peer in peers), asyncio.create_task(_read_events(api))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_events(api: GatewayApi) -> None:
    while True:
        try:
            async with api.http.stream("GET", "/v1/events?follow=true") as answer:
                async for _ in answer.aiter_lines():
                    pass
        except httpx2.RequestError:
            await asyncio.sleep(0.1)


async def use_all(api: GatewayApi) -> None:
    """Commands to all agents, a run over them, and a list of them."""
    await asyncio.gather(*(_works(api, f"host-{number}") for number in range(AGENTS)))
    body = {"selector": "*", "method": "work"}
    run = (await _accepted(lambda: api.http.post("/v1/runs", json=body))).json()["id"]

    async def ended() -> bool:
        return bool((await _accepted(lambda: api.http.get(f"/v1/runs/{run}"))).json()["ended"])

    await until(ended, 60)
    await _accepted(lambda: api.http.get("/v1/agents?count=true"))


async def _accepted(call: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
    """The answer to a request that is repeated until it is no error, for instance because no replica follows yet."""
    async with asyncio.timeout(60):
        while (answer := await call()).status_code == 503:
            await asyncio.sleep(0.2)
    assert answer.is_success, answer.text
    return answer


async def _works(api: GatewayApi, agent: str) -> None:
    async def ended_well() -> bool:
        answer = await api.post({"agent": agent, "method": "work"})
        if answer.status_code != 202:
            return False
        command = answer.json()["id"]
        try:
            return bool((await api.end(command))["state"] == "ok")
        except (AssertionError, KeyError):
            return False

    await until(ended_well, 90)


async def test_a_node_has_two_connections_to_one_server(
    tmp_path: Path, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    server = ValkeyServer(tmp_path / "server")
    try:
        await server.start()
        gateway = await asyncio.to_thread(make_gateway, f"redis://:{PASSWORD}@{server.address}")
        api = api_of(gateway)
        async with watched(gateway, [server.port]) as connections, busy(gateway, dial, api):
            await use_all(api)
            server.kill()
            await server.start()
            await use_all(api)
            await until(lambda: connections.are({server.port: 2}))
        assert connections.most_in_all == 2
    finally:
        server.stop()


@pytest.mark.parametrize("durability", ["local", "replicated"])
async def test_a_node_has_its_share_of_connections_with_sentinels(
    tmp_path: Path, durability: str, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    share = 2 if durability == "local" else 3
    servers = Replication(tmp_path / "servers")
    sentinels = {sentinel.port: share for sentinel in servers.sentinels}
    ports = [*sentinels, *(server.port for server in servers.servers)]
    try:
        await servers.start()
        gateway = await asyncio.to_thread(make_gateway, servers.url, "--durability", durability)
        api = api_of(gateway)
        async with watched(gateway, ports) as connections, busy(gateway, dial, api):

            async def only_to_the_primary() -> bool:
                return connections.are(sentinels | {(await servers.primary()).port: share})

            await use_all(api)
            await until(only_to_the_primary)
            old = await servers.primary()
            old.kill()
            await until(partial(_is_another, servers, old), 60)
            await use_all(api)
            await until(only_to_the_primary)
        primaries = servers.primaries()
        assert old in primaries
        assert len(primaries) > 1
        assert connections.most <= Counter(sentinels | {server.port: share for server in primaries})
    finally:
        servers.stop()


async def _is_another(servers: Replication, old: ValkeyServer) -> bool:
    return await servers.primary() is not old


@pytest.mark.parametrize("durability", ["local", "replicated"])
async def test_a_node_has_its_share_of_connections_to_a_cluster(
    tmp_path: Path, durability: str, make_gateway: MakeGateway, api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    to_each = 1 if durability == "local" else 2
    usual, moment = 3 * to_each + 2, 1
    cluster = Cluster(tmp_path / "servers")
    try:
        await cluster.start()
        gateway = await asyncio.to_thread(make_gateway, cluster.url, "--durability", durability)
        api = api_of(gateway)
        ports = [server.port for server in cluster.servers]
        async with watched(gateway, ports) as connections, busy(gateway, dial, api):
            await use_all(api)
            assert connections.most_in_all <= usual + moment
            first, replica = cluster.servers[0], cluster.servers[3]
            await until(partial(replica.has_all_of, first))
            first.kill()
            await replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
            await first.start()  # as a replica, so that durability finds one
            await use_all(api)
            await until(lambda: _are(connections, usual))
        assert connections.most_in_all <= usual + moment + to_each, "for some seconds to the old primary, too"
        assert connections.now[first.port] == 0, "a replica is not connected to"
    finally:
        cluster.stop()


async def _are(connections: Connections, count: int) -> bool:
    return connections.now.total() == count
