"""The command sweeper and the index sweeper on a real Valkey: a sweep goes on until nothing is due, and each shard is
swept by as few nodes as necessary."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.bus.doorbell import CancelRequested, Doorbell
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet import schema
from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.command_record import NewRecord
from fairlead.fleet.node_table import NodeRow, NodeTable
from fairlead.fleet.schema import TargetState
from fairlead.routing.agents import index_sweeper
from fairlead.routing.agents.index_sweeper import IndexSweeper
from fairlead.routing.agents.removal import AgentRemoval
from fairlead.routing.commands.completion import Completion
from fairlead.routing.commands.sweeper import ROUND_MS, CommandSweeper, shards_of
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.membership.membership import Membership
from fairlead.routing.observability.telemetry_recorder import TelemetryRecorder
from fairlead.shards import SHARDS, agent_shard, command_shard, of_agent
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items, text
from fairlead.telemetry.metrics import Metrics
from fairlead.telemetry.tracing import Tracing
from fairlead.wire.ids import uuid7

pytestmark = pytest.mark.timeout(180)

DAY_MS = 24 * 3600_000
FAR_MS = 600_000


class NodeSweepers:
    """The sweepers of one node without their loops, and what they use."""

    def __init__(self, store: Pipeliner) -> None:
        self.store = store
        self.membership = Membership("node-1")
        self.membership.epoch = "a"
        fleet = FleetStore.on(store, 1 << 24, 0)
        self.directory, self.due, self.records = fleet.directory, fleet.deadlines, fleet.records
        self.doorbells: list[Doorbell] = []
        self.inbox = Inbox(store, "node-1", "a", self.doorbells.extend)
        metrics = Metrics()
        self.completion = completion = Completion(
            self.directory,
            self.due,
            self.inbox,
            metrics,
            TelemetryRecorder(Tracing(), metrics, self.membership),
            fleet.tenants,
        )
        self.sweeper = CommandSweeper(fleet, self.inbox, completion, self.membership)
        removal = AgentRemoval(fleet, completion, self.membership, metrics, 30 * DAY_MS)
        self.index = IndexSweeper(
            self.directory, ColumnBuilder(self.store, self.directory), removal, self.membership, metrics
        )

    async def now(self) -> int:
        """Redis TIME in ms, which the node is told as by its heartbeat."""
        seconds, micros = items(await self.store.submit("TIME"))
        now = integer(seconds) * 1000 + integer(micros) // 1000
        self.membership.heartbeat_answered(now)
        return now

    async def hang(self, count: int, payload: bytes = b"{}") -> list[str]:
        """Send commands that are due for a sweep now to agents of this node; returns their ids."""
        now = await self.now()
        made: list[str] = []
        calls: list[Awaitable[Any]] = []
        for number in range(count):
            agent = f"agent-{number}"
            command = of_agent(uuid7(now, random.randbytes(10)), agent)
            made.append(command)
            # Those of one priority are executed in this order.
            calls.append(
                self.directory.claim(agent, self.membership.lease, "boot", 1, f"s{number}", b"{}", now + FAR_MS)
            )
            record = NewRecord(command, agent, "work", payload, "interactive", now, now + FAR_MS, 60_000, now + FAR_MS)
            calls.append(self.records.accept(record, now, now + FAR_MS, unknown=True))
            calls.append(self.records.fence(command, agent, now + FAR_MS, "boot"))
            if number % 100 == 99 or number == count - 1:
                for call in calls:
                    await call
                calls.clear()
        return made

    async def pass_deadline(self, commands: list[str]) -> None:
        """Set the deadline in each record to two seconds ago."""
        past = await self.now() - 2_000
        all_terms = [self.store.submit("HGET", schema.cmd_key(command), "terms") for command in commands]
        for command, terms in zip(commands, all_terms, strict=True):
            _, _, rest = text(await terms).partition("|")
            last = self.store.submit("HSET", schema.cmd_key(command), "terms", f"{past}|{rest}")
        await last

    async def left(self) -> int:
        """Targets in the list of deadlines."""
        for reply in self.due.flush():
            await reply
        return sum([integer(await self.store.submit("ZCARD", schema.deadlines_key(s))) for s in range(SHARDS)])

    async def sweep(self) -> None:
        await self.sweeper.sweep(range(SHARDS))


@pytest.fixture
async def sweepers(
    own_valkey: EmbeddedValkey, redis_of: Callable[[EmbeddedValkey], Awaitable[Pipeliner]]
) -> NodeSweepers:
    return NodeSweepers(await redis_of(own_valkey))


async def test_one_sweep_continues_until_nothing_is_due(sweepers: NodeSweepers) -> None:
    """More targets are due than one take returns (sixteen shards of 64). None is left for a later sweep."""
    commands = await sweepers.hang(1_500)
    await sweepers.pass_deadline(commands)
    await sweepers.sweep()
    assert await sweepers.left() == 0
    for command in commands:
        found = await sweepers.records.look_up(command)
        assert found is not None
        ending = found.targets[0].ending
        assert (found.targets[0].state, ending.code if ending else "") == (TargetState.TIMEOUT, "deadline")
        assert await sweepers.directory.open_commands(found.agent) == []
        row = await sweepers.directory.look_up(found.agent)
        assert row is not None
        assert row.last_failure.partition(" ")[2] == f"command {command} ended as timeout: deadline"
    stopped = [doorbell for doorbell in sweepers.doorbells if isinstance(doorbell, CancelRequested)]
    assert sorted(doorbell.command for doorbell in stopped) == sorted(commands)
    assert {doorbell.why for doorbell in stopped} == {"deadline"}


async def test_a_round_finds_out_when_each_shard_is_due_and_takes_from_no_other(sweepers: NodeSweepers) -> None:
    """One call for each shard of an idle fleet. A target that is rescheduled is due again at its time, whoever sweeps
    the round in which that is."""
    now = await sweepers.now()
    before = await _executed(sweepers.store)
    assert await sweepers.sweeper.due_shards() == []
    executed = await _executed(sweepers.store) - before
    assert {name: n for name, n in executed.items() if name not in {"info", "client|getname"}} == {"zrange": SHARDS}
    (command,) = await sweepers.hang(1)
    shard = command_shard(command)
    sweepers.membership.heartbeat_answered(now + ROUND_MS)
    assert await sweepers.sweeper.due_shards() == [shard]
    assert await sweepers.sweeper.due_shards() == []  # nobody looks twice for what is being handled
    terms = text(await sweepers.store.submit("HGET", schema.cmd_key(command), "terms")).partition("|")[2]
    await sweepers.store.submit("HSET", schema.cmd_key(command), "terms", f"{now}|{terms}")
    await sweepers.sweeper.sweep([shard])  # its grace ends a second after `now`
    sweepers.membership.heartbeat_answered(now + 2 * ROUND_MS)
    sweepers.membership.epoch = "b"  # others sweep from here on: no shard is this node's
    assert await sweepers.sweeper.due_shards() == [shard]


async def test_the_command_sweeper_reads_no_payloads(sweepers: NodeSweepers) -> None:
    """The commands that are due have 20 MiB of payloads, and most are not over yet: Redis sends some kilobytes."""
    commands = await sweepers.hang(40, b"x" * (512 << 10))
    await sweepers.pass_deadline(commands[:10])
    before = await _sent(sweepers.store)
    await sweepers.sweep()
    assert await _sent(sweepers.store) - before < 100_000
    states = [found.targets[0].state for c in commands if (found := await sweepers.records.look_up(c)) is not None]
    assert states == [TargetState.TIMEOUT] * 10 + [TargetState.SENT] * 30
    assert await sweepers.left() == 30


async def test_an_error_of_redis_for_one_target_does_not_affect_the_others(
    sweepers: NodeSweepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised once the others are handled: they do not go on beside the next sweep."""
    failing, *others = await sweepers.hang(5)
    reschedule, finished = sweepers.due.reschedule, []

    async def fail_for_one(command: str, agent: str, taken: int, at: int) -> None:
        if command == failing:
            raise BusUnavailable("Redis did not answer this one")
        await reschedule(command, agent, taken, at)
        finished.append(command)

    monkeypatch.setattr(sweepers.due, "reschedule", fail_for_one)
    with pytest.raises(BusUnavailable, match="this one"):
        await sweepers.sweep()
    assert sorted(finished) == sorted(others)


async def _executed(store: Pipeliner) -> Counter[str]:
    """How often the server has executed each command."""
    lines = text(await store.submit("INFO", "commandstats")).splitlines()
    found = (line.removeprefix("cmdstat_").partition(":calls=") for line in lines if line.startswith("cmdstat_"))
    return Counter({name: int(rest.partition(",")[0]) for name, _, rest in found})


async def _sent(store: Pipeliner) -> int:
    """Bytes that the server has sent to all its clients."""
    lines = text(await store.submit("INFO", "stats")).splitlines()
    return int(next(line for line in lines if line.startswith("total_net_output_bytes:")).partition(":")[2])


def _fleet(nodes: int, now: int) -> list[Membership]:
    """Live nodes that all read the same table of nodes."""
    rows = {f"n{i}": NodeRow(f"n{i}", "a", now, now, "serving", 0, 1, 0, "", 0, 0, 0.0) for i in range(nodes)}
    fleet = []
    for name in rows:
        membership = Membership(name)
        membership.epoch, membership.table = "a", NodeTable(rows)
        membership.heartbeat_answered(now)
        fleet.append(membership)
    return fleet


@pytest.mark.parametrize(("nodes", "looks"), [(1, 1), (2, 2), (60, 2)])
def test_each_shard_is_swept_by_two_nodes_of_any_number(nodes: int, looks: int) -> None:
    fleet = _fleet(nodes, 1_700_000_000_000)
    for round_number in range(3):
        shards = Counter(shard for s in fleet for shard in shards_of(round_number, s.lease, s.living()))
        assert shards == dict.fromkeys(range(SHARDS), looks)


def test_one_node_sweeps_each_shard_of_the_index_in_its_minute() -> None:
    nobody: Any = None  # never asked: the shard comes from the turn alone
    walked: set[int] = set()
    for round_number in range(SHARDS):
        fleet = _fleet(20, (28_000_000 + round_number) * index_sweeper.ROUND_MS + 1)
        shards = [
            shard for s in fleet if (shard := IndexSweeper(nobody, nobody, nobody, s, nobody).shard()) is not None
        ]
        assert len(shards) == 1
        walked |= set(shards)
    assert walked == set(range(SHARDS))


async def test_the_sweep_forgets_only_agents_that_were_absent_for_long(sweepers: NodeSweepers) -> None:
    now = await sweepers.now()
    lease = sweepers.membership.lease
    sweepers.membership.table = NodeTable(
        {"node-1": NodeRow("node-1", "a", now, now, "serving", 0, 1, 0, "", 0, 0, 0.0)}
    )
    for agent, holder, seen in (
        ("linked", lease, now - 40 * DAY_MS),
        ("away-lately", "", now - 20 * DAY_MS),
        ("away-for-long", "", now - 31 * DAY_MS),
        ("on-a-dead-node", "node-2#b", now - 31 * DAY_MS),
    ):
        await sweepers.directory.claim(agent, holder, "boot", 1, "sid", b"{}", now + FAR_MS)
        await sweepers.store.submit("HSET", schema.agent_key(agent), "seen", seen)
    shard = agent_shard("refused")
    await sweepers.store.submit("ZADD", schema.index_key(shard), 0, "refused")  # its claim was
    for number in range(SHARDS):
        await sweepers.index.sweep(number)
    rows = await sweepers.directory.look_up_all(["linked", "away-lately", "away-for-long", "on-a-dead-node", "refused"])
    assert [row.agent for row in rows] == ["linked", "away-lately"]
    pages = [await sweepers.directory.index_page(number, "", 10) for number in range(SHARDS)]
    assert sorted(itertools.chain(*pages)) == ["away-lately", "linked"]
