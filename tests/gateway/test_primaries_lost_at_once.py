"""Two primaries of a Cluster are lost at once, and one of them is back much later: what nodes have told of the other
one's agents is true again before that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from gateway.test_redis_failover import answered, read

from fairlead.fleet.schema import agent_key, cmd_key
from fairlead.wire.messages import Ack, Cmd, End

from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.valkey.cluster import Cluster, ClusterServer
from support.valkey.network import Network
from support.waiting import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Network() as network:
        made = Cluster(tmp_path / "servers", network=network)
        try:
            await made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
async def gateways(cluster: Cluster, tmp_path: Path) -> AsyncIterator[list[GatewayProcess]]:
    """They reach Redis through this process, so nothing here may block it."""
    made = [GatewayProcess(tmp_path, cluster.url, (), name) for name in ("node-1", "node-2")]
    try:
        await asyncio.gather(*(asyncio.to_thread(gateway.start) for gateway in made))
        yield made
    finally:
        await asyncio.gather(*(asyncio.to_thread(gateway.stop) for gateway in made))


async def agent_on(cluster: Cluster, primary: ClusterServer) -> str:
    for number in range(100):
        if await cluster.owner(agent_key(name := f"host-{number}")) is primary:
            return name
    raise AssertionError("no name leads to this primary")


async def ended_behind_the_replica(
    cluster: Cluster, api: GatewayApi, peer: ScriptedAgent, primary: ClusterServer, replica: ClusterServer, *,
    accepted: bool = True,
) -> str:  # fmt: skip
    """A command that was told as ended, of whose end the replica of its primary knows nothing, and, unless it knows
    that it was `accepted`, nothing at all."""
    assert cluster.network is not None
    if not accepted:
        await until(partial(replica.has_all_of, primary))
        cluster.network.separate(primary, [replica])
    answer = await answered(lambda: api.post({"agent": peer.agent, "method": "work", "deadline": 120}))
    command = str(answer.json()["id"])
    assert (await peer.expect(Cmd)).id == command
    if accepted:
        await until(partial(replica.has_all_of, primary))
        cluster.network.separate(primary, [replica])
    await peer.send(Ack(id=command))
    await peer.send_output(command, 0, "all of it")
    await peer.send(End(id=command, total=1, state="ok"))
    assert (await api.end(command))["state"] == "ok"
    return command


async def state_at(server: ClusterServer, command: str, agent: str) -> str:
    await server.call("READONLY")
    row = await server.call("HGET", cmd_key(command), f"t:{agent}")
    return str(row.decode().partition("|")[0]) if row is not None else "gone"


async def test_what_was_told_of_one_primary_is_said_again_while_another_one_is_away(
    cluster: Cluster, gateways: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    api = api_of(gateways[1])
    first, second, replica, its_replica = (cluster.servers[number] for number in (0, 1, 3, 4))
    peers = [await dial(gateways[0], await agent_on(cluster, primary)) for primary in (first, second)]
    for peer in peers:
        await peer.greet()
    await asyncio.gather(*(until(partial(_is_noted, primary)) for primary in (first, second)))
    pairs = ((peers[0], first, replica), (peers[1], second, its_replica))
    commands = [await ended_behind_the_replica(cluster, api, *pair) for pair in pairs]
    assert cluster.network is not None
    for server in (first, second):
        server.kill()
        cluster.network.cut(server)
    its_replica.signal(signal.SIGSTOP)
    cluster.network.release()
    try:
        await replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
        assert await state_at(replica, commands[0], peers[0].agent) != "ok", "it must lack the last moment"
        found = await read(api, commands[0])
        assert (found["state"], found["truncated"]) == ("ok", False)
        assert await api.output(commands[0]) == "all of it"
        answer = await api.http.get(f"/v1/commands/{commands[1]}")
        assert answer.status_code == 503, "its primary is away"
        assert [await metric(gateway, "fairlead_redis_failovers_total") for gateway in gateways] == [1, 1]
    finally:
        its_replica.signal(signal.SIGCONT)
    await until(lambda: _is_ok(api, commands[1]), 90)
    assert [await metric(gateway, "fairlead_redis_failovers_total") for gateway in gateways] == [2, 2]


async def test_an_end_that_was_told_stays_although_its_primary_has_lost_the_acceptance_too(
    cluster: Cluster, gateways: list[GatewayProcess], api_of: MakeGatewayApi, dial: DialAgent
) -> None:
    """One node has accepted the command, and another one knows its end. The other primaries stay."""
    api, primary, replica = api_of(gateways[1]), cluster.servers[0], cluster.servers[3]
    peer = await dial(gateways[0], await agent_on(cluster, primary))
    await peer.greet()
    await until(partial(_is_noted, primary))
    command = await ended_behind_the_replica(cluster, api, peer, primary, replica, accepted=False)
    assert cluster.network is not None
    primary.kill()
    cluster.network.cut(primary)
    cluster.network.release()
    await replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
    for gateway in gateways:
        found = await read(api_of(gateway), command)
        assert (found["state"], found["truncated"]) == ("ok", False)
        assert await api_of(gateway).output(command) == "all of it"


async def _is_noted(primary: ClusterServer) -> bool:
    """Whether the nodes have noted on this primary which one it is: by this they know another one in its place."""
    return any(key.startswith(b"fl1:compared_primary:") for key in await primary.call("KEYS", "fl1:compared*"))


async def _is_ok(api: GatewayApi, command: str) -> bool:
    answer = await api.http.get(f"/v1/commands/{command}")
    if answer.status_code == 200:
        assert answer.json()["state"] == "ok", "an end that was told must stay"
    return answer.status_code == 200
