"""Thousands of commands with one deadline, on real nodes that compete for them: each ends once and none is left
over."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from fairlead.bus.doorbell import CancelRequested, decode
from fairlead.bus.inbox import inbox_key
from fairlead.fleet import schema
from fairlead.fleet.command_record import NewRecord, StoredEnd
from fairlead.fleet.commands import Commands, ending
from fairlead.fleet.directory import Directory
from fairlead.fleet.schema import TargetState
from fairlead.shards import SHARDS, command_shard, of_agent
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, octets, table
from fairlead.wire.ids import uuid7
from fairlead.wire.messages import DEADLINE

from support.fixtures import RedisOf
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import MakeGateway
from support.waiting import until

pytestmark = pytest.mark.timeout(180)

COUNT = 2_000
WATCHER = "watcher#1"
"""The lease that holds all agents. Its inbox is the test's own, to read what agents' nodes are told."""
FAR_MS = 600_000
GEN = 1 << 50
"""Of the owner that has sent the commands: newer than any that a claim gives."""
WAIT_TIMEOUT = 60.0


class DueCommands:
    """COUNT commands that were sent to their agents and whose deadline passed two seconds ago. `targets`: command →
    agent."""

    def __init__(self, store: Pipeliner) -> None:
        self.store = store
        self.directory, self.records = Directory(store), Commands(store, 1 << 24)
        self.targets: dict[str, str] = {}
        self.ends: Counter[str] = Counter()
        """Writes to each record since the crowd is due: the step that ends a command is the only one."""

    async def gather(self) -> None:
        seconds, _ = items(await self.store.submit("TIME"))
        now = integer(seconds) * 1000
        await self.store.submit("XADD", inbox_key(WATCHER), "*", "d", b"\x90")
        for start in range(0, COUNT, 100):
            agents = [f"agent-{number}" for number in range(start, start + 100)]
            valid = now + FAR_MS
            for claim in [self.directory.claim(agent, WATCHER, "boot", 1, agent, b"{}", valid) for agent in agents]:
                await claim
            calls: list[Awaitable[Any]] = []
            for agent in agents:
                command = of_agent(uuid7(now, random.randbytes(10)), agent)
                self.targets[command] = agent
                record = NewRecord(
                    command, agent, "work", b"{}", "interactive", now, now + FAR_MS, 600_000, now + FAR_MS
                )
                # They are executed in this order, since they are of one priority.
                calls.append(self.records.accept(record, now + FAR_MS, valid))
                calls.append(self.records.fence(command, agent, GEN, "boot"))
                key = schema.cmd_key(command)
                calls.append(self.store.submit("HSET", key, "terms", f"{now - 2_000}|600000|never|all|0"))
            for call in calls:
                await call

    @asynccontextmanager
    async def watched(self, url: str) -> AsyncIterator[None]:
        """Count the writes to each record."""
        watcher = Redis.from_url(url)
        events = watcher.pubsub()
        await watcher.config_set("notify-keyspace-events", "Kh")
        await events.psubscribe("__keyspace@0__:fl2:cmd:*")

        async def count() -> None:
            async for event in events.listen():
                if event["type"] == "pmessage" and event["data"] == b"hset":
                    self.ends[event["channel"].decode().rpartition(":")[2]] += 1

        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            counting.cancel()
            await asyncio.wait([counting])
            await events.aclose()  # type: ignore[no-untyped-call]  # redis-py types it in part
            await watcher.aclose()

    async def fall_due(self) -> None:
        """Make all of them due now."""
        members: dict[int, list[str]] = {}
        for command, agent in self.targets.items():
            members.setdefault(command_shard(command), []).extend(("1", f"{command} {agent}"))
        for added in [self.store.submit("ZADD", schema.deadlines_key(shard), *flat) for shard, flat in members.items()]:
            await added

    async def all_dealt_with(self) -> None:
        """Wait until the list of deadlines is empty and every end was counted."""
        async with asyncio.timeout(WAIT_TIMEOUT):
            while await self.left() or len(self.ends) < COUNT:
                await asyncio.sleep(0.05)

    async def left(self) -> int:
        shards = [self.store.submit("ZCARD", schema.deadlines_key(shard)) for shard in range(SHARDS)]
        return sum([integer(await count) for count in shards])

    async def states(self) -> dict[str, TargetState]:
        found = {}
        records = [self.records.look_up(command) for command in self.targets]
        for (command, agent), reading in zip(self.targets.items(), records, strict=True):
            record = await reading
            assert record is not None
            (target,) = record.targets
            assert (target.agent, target.ending is not None) == (agent, target.state.over)
            found[command] = target.state
        return found

    async def stopped(self) -> Counter[str]:
        """How often the agents' nodes were told to stop each command because of its deadline."""
        cancels: Counter[str] = Counter()
        for entry in items(await self.store.submit("XRANGE", inbox_key(WATCHER), "-", "+")):
            for doorbell in decode(octets(table(items(entry)[1])[b"d"])):
                assert isinstance(doorbell, CancelRequested)
                assert (doorbell.why, self.targets[doorbell.command]) == (DEADLINE, doorbell.agent)
                cancels[doorbell.command] += 1
        return cancels

    async def are_closed(self, timed_out: set[str]) -> None:
        """No command is open for its agent any more, and each that has `timed_out` is reported as a failure once."""
        opened = [self.store.submit("EXISTS", schema.open_key(agent)) for agent in self.targets.values()]
        rows = [self.directory.look_up(agent) for agent in self.targets.values()]
        for command, still_open, reading in zip(self.targets, opened, rows, strict=True):
            row = await reading
            assert row is not None
            failures = [line.partition(" ")[2] for line in row.failures.splitlines()]
            assert failures == ([f"command {command} ended as timeout: deadline"] if command in timed_out else [])
            assert await still_open == 0


@pytest.fixture
async def crowd(own_valkey: EmbeddedValkey, redis_of: RedisOf) -> DueCommands:
    return DueCommands(await redis_of(own_valkey))


async def test_commands_end_once_though_two_nodes_and_the_agents_compete(
    crowd: DueCommands, own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi
) -> None:
    nodes = [make_gateway(own_valkey.url, name=f"node-{number}") for number in (1, 2)]
    await crowd.gather()
    answered: list[str] = []

    async def answer(commands: list[str]) -> None:
        """The ends that the agents send at that moment."""
        for command in commands:
            end = ending(0, TargetState.OK, StoredEnd(payload=b"1"))
            stored = await crowd.records.append(command, crowd.targets[command], GEN, end)
            assert stored.why in ("ok", "over")
            if stored.why == "ok":
                answered.append(command)

    commands = list(crowd.targets)
    async with crowd.watched(own_valkey.url):
        await crowd.fall_due()
        # From the end of the list, which the sweepers reach last.
        await asyncio.gather(*(answer(commands[part::8][::-1][:50]) for part in range(8)))
        await crowd.all_dealt_with()
    assert crowd.ends == dict.fromkeys(commands, 1)
    states = await crowd.states()
    assert {command for command, state in states.items() if state is TargetState.OK} == set(answered)
    timed_out = {command for command, state in states.items() if state is TargetState.TIMEOUT}
    assert len(timed_out) == COUNT - len(answered)
    assert await crowd.stopped() == dict.fromkeys(timed_out, 1)
    await crowd.are_closed(timed_out)
    counted = [await _timed_out(api_of(node), node.admin) for node in nodes]
    assert sum(counted) == len(timed_out)


async def test_a_sweeper_killed_among_thousands_of_deadlines_is_replaced_by_the_other(
    crowd: DueCommands, own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    """The other sweeper also settles what the killed one had ended: agents are told to stop, and nothing stays open."""
    victim, other = (make_gateway(own_valkey.url, name=f"node-{number}") for number in (1, 2))
    await crowd.gather()
    async with crowd.watched(own_valkey.url):
        other.signal(signal.SIGSTOP)
        await crowd.fall_due()
        await until(lambda: len(crowd.ends) >= 100, WAIT_TIMEOUT)
        victim.signal(signal.SIGKILL)
        victim.wait()
        states = await crowd.states()
        ended = {command for command, state in states.items() if state is TargetState.TIMEOUT}
        assert 100 <= len(ended) < COUNT
        assert await crowd.left() > 0
        other.signal(signal.SIGCONT)
        await crowd.all_dealt_with()
    assert crowd.ends == dict.fromkeys(crowd.targets, 1)
    assert set((await crowd.states()).values()) == {TargetState.TIMEOUT}
    assert set(await crowd.stopped()) == set(crowd.targets)
    await crowd.are_closed(set(crowd.targets))


async def _timed_out(api: GatewayApi, admin: str) -> int:
    """Commands that this node has counted as timed out."""
    metrics = (await api.http.get(f"{admin}/metrics")).text
    found = re.search(r'^fairlead_commands_total\{state="timeout"\} ([\d.]+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0
