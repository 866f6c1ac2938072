"""Faults of the servers of a Redis with Sentinels and of a Redis Cluster, while commands run on all agents.

Nodes, agents, callers and the judgement are those of the other faults (see run.py).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from redis.crc import key_slot

from fairlead.fleet import schema
from fairlead.shards import SHARDS
from fairlead.wire.close_codes import CloseCode

from faults.fault_fleet import PLATFORM, FaultFleet, NodeProcess
from faults.redis.played_fleet import LAST_MOMENT, answering, played
from support.valkey.cluster import Cluster, ClusterServer
from support.valkey.replication import Replication
from support.valkey.server import ValkeyServer
from support.waiting import until

PATIENCE = 45.0
"""Seconds that a command may take on a busy machine: less than its default deadline."""
AT_ONCE = 6
"""Commands of a test that wait at once: this process is the agents too, and may get a tenth of a processor."""
RATE = 8.0
"""Commands of others in a second, for the same reason."""
AWAY = 20.0
"""Seconds that a shard is away: longer than the 15 s after which a node without heartbeats counts as dead."""
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
async def replication(tmp_path: Path) -> AsyncIterator[Replication]:
    made = Replication(tmp_path / "servers")
    try:
        await made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("fault", ["kill", "freeze", "by hand"])
async def test_sentinels_replace_the_primary(fault: str, replication: Replication, tmp_path: Path) -> None:
    async with played(tmp_path, replication.url, LAST_MOMENT) as fleet:
        before = await replication.primary()
        if fault == "by hand":
            await replication.fail_over()
        else:
            before.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

        async def replaced() -> bool:
            return await replication.primary() is not before and fleet.store.address != before.address

        await until(replaced, 60)
        await answering(fleet)
        if fault == "freeze":
            before.signal(signal.SIGCONT)
            await until(lambda: _is_replica(before), 60)


async def _is_replica(server: ValkeyServer) -> bool:
    return str((await server.info("replication"))["role"]) == "slave"


@asynccontextmanager
async def cluster_of(folder: Path, *, replicas: bool) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder / "servers", replicas=replicas)
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("fault", ["kill", "freeze", "by hand"])
async def test_a_replica_takes_over_for_a_primary_of_a_cluster(fault: str, tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replicas=True) as cluster, played(tmp_path, cluster.url, LAST_MOMENT) as fleet:
        before, replica = cluster.servers[0], cluster.servers[3]
        if fault == "by hand":
            await replica.call("CLUSTER", "FAILOVER")
        else:
            before.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

        async def replaced() -> bool:
            primaries = fleet.store.primaries()
            return replica.address in primaries and before.address not in primaries

        await until(replaced, 60)
        await answering(fleet)
        if fault == "freeze":
            before.signal(signal.SIGCONT)
            await until(lambda: _is_replica(before), 60)


@pytest.mark.parametrize("at_once", [False, True])
async def test_slots_move_while_commands_go_on(at_once: bool, tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replicas=False) as cluster, played(tmp_path, cluster.url) as fleet:
        move = cluster.move_slot_at_once if at_once else cluster.move_slot
        tags = [str(shard).encode() for shard in range(0, SHARDS, 4)] + [tag.encode() for tag in schema.MEMBERSHIP]
        for slot in map(key_slot, tags):
            source = await cluster.owner_of(slot, cluster.servers[0])
            target = cluster.servers[(cluster.servers.index(source) + 1) % 3]
            await move(slot, source, target)
        await answering(fleet)


@pytest.mark.parametrize("number", range(3))
async def test_a_shard_that_is_away_is_felt_by_its_agents_alone(number: int, tmp_path: Path) -> None:
    async with cluster_of(tmp_path, replicas=False) as cluster, played(tmp_path, cluster.url, rate=RATE) as fleet:
        gone = cluster.servers[number]
        owners = {name: await cluster.owner(schema.agent_key(name)) for name in fleet.names}
        others = [name for name, owner in owners.items() if owner is not gone]
        its = next(name for name, owner in owners.items() if owner is gone)
        gone.signal(signal.SIGSTOP)
        try:
            await until(lambda: _names(fleet.nodes[0], fleet, its, gone), 20)
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + AWAY:
                for node in fleet.nodes:
                    await _all_work(fleet, node, others)
                    assert (
                        await fleet.http.get(f"http://127.0.0.1:{node.admin}/readyz", timeout=PATIENCE)
                    ).status_code == 200
            for node in fleet.nodes:
                assert await _names(node, fleet, its, gone)
                assert await fleet.metric(node, "fairlead_redis_up") == 0
                assert await fleet.metric(node, "fairlead_redis_primary_up") == 2
                # A busy machine may be silent for too long; that Redis is away closes no link.
                assert await _closed(fleet, node, CloseCode.BUS_AWAY) == 0
                assert await fleet.metric(node, "fairlead_links") > 0
            late = NodeProcess("node-3", cluster.url, tmp_path)
            try:
                await late.start()
                await _works(fleet, late, others[0])
                assert await _names(late, fleet, its, gone)
            finally:
                await late.stop()
        finally:
            gone.signal(signal.SIGCONT)
        await answering(fleet)
        await _works(fleet, fleet.nodes[0], its)
        assert not any("taken for dead" in node.log() for node in fleet.nodes)


async def _all_work(fleet: FaultFleet, node: NodeProcess, agents: Iterable[str]) -> None:
    left = iter(agents)

    async def one_after_the_other() -> None:
        for agent in left:
            await _works(fleet, node, agent)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())


async def _works(fleet: FaultFleet, node: NodeProcess, agent: str) -> None:
    """A command with an Idempotency-Key runs on an agent, through this node. As callers do, a post is repeated that was
    refused for a moment, because this machine may be too busy for Redis to answer in time."""
    key = f"probe {agent} {fleet.rng.random()}"
    body = {"agent": agent, "method": "work", "payload": {"key": key, "count": 1, "width": 0, "pause": 0}}
    headers = {**PLATFORM, "accept": "application/x-ndjson", "idempotency-key": key}
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                answer = await fleet.http.post(
                    f"http://127.0.0.1:{node.api}/v1/commands", json=body, headers=headers, timeout=PATIENCE
                )
            except httpx2.RequestError:
                continue
            if answer.status_code != 503:
                break
            await asyncio.sleep(0.2)
    assert answer.status_code == 200, f"{agent} at {node.name}: {answer.text}"
    assert '"state":"ok"' in answer.text.replace(" ", ""), f"{agent} at {node.name}: {answer.text}"


async def _closed(fleet: FaultFleet, node: NodeProcess, code: CloseCode) -> float:
    """Links that this node has closed with a code."""
    text = (await fleet.http.get(f"http://127.0.0.1:{node.admin}/metrics", timeout=PATIENCE)).text
    lines = [line for line in text.splitlines() if line.startswith("fairlead_links_closed_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'"{code.value}"' in line)


async def _names(node: NodeProcess, fleet: FaultFleet, agent: str, gone: ClusterServer) -> bool:
    """Whether a post to an agent of the shard that is away is refused with a problem that names the primary."""
    body = {"agent": agent, "method": "work"}
    url = f"http://127.0.0.1:{node.api}/v1/commands"
    answer = await fleet.http.post(url, json=body, headers=PLATFORM, timeout=PATIENCE)
    return answer.status_code == 503 and gone.address in answer.text
