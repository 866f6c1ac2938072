"""The faults, one function each: what is done to the processes while commands run on all agents, and what must hold.

Each takes a fleet with its traffic running and returns when the fault is over; `run.play` then waits until the fleet
is whole again, ends the traffic, and judges. What only one scenario can know (an append was fenced, an agent moved) it
asserts itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

from faults.fault_fleet import FaultFleet, NodeProcess
from faults.misbehaving_agent import MISBEHAVIOURS, outcome_of
from faults.traffic import FaultTraffic
from support.ledger import Way
from support.waiting import until

Scenario = Callable[[FaultFleet, FaultTraffic], Awaitable[None]]
FROZEN = 5.0
"""Seconds: less than the 7.5 s after which a link counts as silent, and enough for agents to start elsewhere."""
SETTLED = 4.0
"""Seconds: an agent that is to connect again does so within two, and the loser of the claim learns it at once."""
BUSY = 1.0
"""Seconds for commands to be everywhere before the fault comes."""


async def kill_holder(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """kill -9 of a node in mid-stream; it comes back a little later."""
    victim = fleet.a_node()
    entry = traffic.call(fleet.names[0], 60, 0.05)
    await asyncio.sleep(BUSY)
    victim = await fleet.holder(entry.agent)
    await kill(victim)
    fleet.repair()
    await asyncio.sleep(fleet.rng.uniform(0.5, 3.0))
    await victim.start()


async def kill_caller(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """kill -9 of the node at which a caller reads: it goes on at another one, from the offset where it stood."""
    entry = traffic.call(fleet.names[0], 60, 0.05)
    await until(lambda: entry.pieces)
    victim = next(node for node in fleet.nodes if node.name == entry.via)
    await kill(victim)
    fleet.repair()
    stood = entry.offset
    await until(lambda: entry.over)
    assert 0 < stood < entry.offset == 60, f"it stood at {stood} and came to {entry.offset}"
    assert entry.attached, "the stream did not break although its node was killed"
    await victim.start()


async def restart_nodes(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """SIGTERM to one node after the other, each back before the next goes."""
    for node in fleet.nodes:
        await asyncio.sleep(BUSY)
        node.signal(signal.SIGTERM)
        code = await node.ended()
        assert code == 0, f"{node.name} ended with {code} after SIGTERM"
        await node.start()
        await fleet.all_online()


async def freeze_node(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """SIGSTOP of a node until its agents have moved, with their streams in its sockets; then it wakes."""
    victim = fleet.a_node()
    other = next(node for node in fleet.nodes if node is not victim)
    held = int(await fleet.metric(victim, "fairlead_agents"))
    moved = int(await fleet.metric(other, "fairlead_agents"))
    for name in fleet.names:
        traffic.call(name, 200, 0.1)  # they run when it freezes, and still when their agents have moved
    await asyncio.sleep(BUSY)
    victim.signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        # It must be dead to the others (15 s), and its agents silent for 2.5 heartbeats.
        while time.monotonic() - began < 20 or int(await fleet.metric(other, "fairlead_agents")) == moved:
            assert time.monotonic() - began < 45, f"none of {held} agents left the frozen node"
            await asyncio.sleep(0.2)
    finally:
        victim.signal(signal.SIGCONT)
        fleet.repair()


async def replace_behind_frozen(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """A node is frozen, too shortly to be taken for dead or its links for silent; meanwhile its agents start anew at
    another one. It wakes with open links and the chunks of the older processes: all of them must be refused, or they
    would mix with those of the second runs."""
    victim = fleet.a_node()
    running = [traffic.call(name, 60, 0.1, Way.SAFE) for name in fleet.names]
    await until(lambda: all(entry.pieces for entry in running))
    held = [name for name in fleet.names if await fleet.holder(name) is victim]
    before = await fleet.metric(victim, "fairlead_appends_fenced_total")
    fleet.avoided = victim
    victim.signal(signal.SIGSTOP)
    try:
        for name in held:
            fleet.start_agent(name)
        await asyncio.sleep(FROZEN)
    finally:
        victim.signal(signal.SIGCONT)
        fleet.avoided = None
        fleet.repair()

    async def refused() -> float:
        return await fleet.metric(victim, "fairlead_appends_fenced_total") - before

    await _until(refused, f"the woken node was refused no append of {len(held)} agents that it had lost")
    await asyncio.sleep(SETTLED)
    sent_away = [name for name in held if fleet.agent_task(name).done()]
    assert not sent_away, f"the older process has won over the newer one: {len(sent_away)} of {len(held)}"


async def kill_valkey(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """kill -9 of Valkey, and its restart on the same file."""
    await asyncio.sleep(BUSY)
    os.kill(fleet.valkey.pid, signal.SIGKILL)
    await asyncio.sleep(fleet.rng.uniform(0.2, 2.0))
    await fleet.valkey.restart()
    fleet.repair()


async def freeze_valkey(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """SIGSTOP of Valkey for some seconds: it executes then what its clients gave up."""
    await asyncio.sleep(BUSY)
    os.kill(fleet.valkey.pid, signal.SIGSTOP)
    await asyncio.sleep(fleet.rng.uniform(2.0, 6.0))
    os.kill(fleet.valkey.pid, signal.SIGCONT)
    fleet.repair()


async def empty_valkey(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """FLUSHALL: every row and record is gone, every link stands."""
    await asyncio.sleep(BUSY)
    await fleet.redis("FLUSHALL")
    fleet.ledger.emptied = time.monotonic()
    fleet.repair()
    fleet.ledger.emitted.clear()  # what was stored is gone with the rest; what comes now must be stored
    took = await fleet.all_online(30)
    for node in fleet.nodes:
        assert await fleet.metric(node, "fairlead_data_lost_total") == 1, f"{node.name} did not report the loss"
    assert took < 30


async def drop_agents(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """All links cut at once."""
    await asyncio.sleep(BUSY)
    cut = fleet.balancer.cut()
    fleet.repair()
    assert cut >= len(fleet.names)


async def half_open(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """A third of the links stands and carries nothing more."""
    await asyncio.sleep(BUSY)
    assert fleet.balancer.stall(0.35) > 0
    fleet.repair()


async def one_identity_twice(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """A second process under the name of a first: the newer wins, the older stays away, what it ran is unknown."""
    name = fleet.names[0]
    running = traffic.call(name, 200, 0.05)
    while not running.pieces:
        await asyncio.sleep(0.05)
    older = fleet.agent_task(name)
    fleet.start_agent(name)
    async with asyncio.timeout(20):
        await asyncio.wait({older})
    assert "4507" in repr(older.exception()), "the older process was not sent away"
    await until(lambda: running.error)
    assert running.error == "outcome_unknown", running.error


async def replace_agents(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """New processes under the names of others, one of them again and again: each new one is another memory."""
    await asyncio.sleep(BUSY)
    fighting, *others = fleet.rng.sample(fleet.names, 5)
    for name in others:
        fleet.start_agent(name)
    for _ in range(4):
        fleet.start_agent(fighting)
        await asyncio.sleep(fleet.rng.uniform(0.1, 0.6))


async def kill_machines(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """kill -9 of agents that keep a journal, again and again, and their restart on it."""
    machines = await fleet.add_machines(3)
    for _ in range(4):
        await asyncio.sleep(BUSY)
        machine = fleet.rng.choice(machines)
        machine.kill()
        await asyncio.sleep(fleet.rng.uniform(0.0, 0.5))
        machine.start(fleet.balancer.port)


async def cut_off(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """One node alone loses Valkey: its connection carries nothing more, and no new one either, until it is repaired."""
    node, line = fleet.nodes[0], fleet.valkey_line
    await asyncio.sleep(BUSY)
    line.stalled = True
    line.stall(1.0)
    fenced = "fairlead_heartbeat_age_seconds"
    await _until(lambda: _over(fleet, node, fenced, 16), "the node that was cut off does not know it", 40)
    line.stalled = False
    line.cut()
    fleet.repair()
    await _until(lambda: fleet.metric(node, "fairlead_redis_up"), "the node did not come back", 20)


async def lose_thousand(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """A thousand idle agents beside the busy ones, all dropped at once."""
    fleet.idle = [f"idle-{i}" for i in range(1_000)]
    for start in range(0, len(fleet.idle), 100):
        for name in fleet.idle[start : start + 100]:
            fleet.start_agent(name, emits=False)
        await fleet.linked(len(fleet.names) + start + 100)
    await fleet.all_online()
    assert fleet.balancer.cut() >= len(fleet.everybody)
    fleet.repair()


async def slow_readers(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """Callers that post commands with much output and read nothing of it: the nodes must not keep it for them."""
    before = {node.name: node.rss() for node in fleet.nodes}
    lazy = [await fleet.lazy_caller(name, 200) for name in fleet.names[:8]]
    await asyncio.sleep(5.0)
    for node in fleet.nodes:
        grown = node.rss() - before[node.name]
        assert grown < 64 << 20, f"{node.name} has grown by {grown >> 20} MiB for callers that read nothing"
    for writer in lazy:
        writer.transport.abort()


async def misbehave(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """Agents that answer twice, out of order, with gaps, too late or never: each command still has an explicit end."""
    outcomes = await asyncio.gather(
        *(outcome_of(fleet, fleet.a_node(), misbehaviour) for misbehaviour in MISBEHAVIOURS)
    )
    for (misbehaviour, expected), got in zip(MISBEHAVIOURS.items(), outcomes, strict=True):
        assert got == expected, f"an agent that answers {misbehaviour.__name__} led to {got}, not to {expected}"


async def storm(fleet: FaultFleet, traffic: FaultTraffic) -> None:
    """Faults in a row, some of them at once."""
    for _ in range(4):
        await fleet.rng.choice([kill_holder, kill_valkey, freeze_valkey, drop_agents, half_open])(fleet, traffic)
        await asyncio.sleep(fleet.rng.uniform(0.0, 3.0))


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        kill_holder, kill_caller, restart_nodes, freeze_node, replace_behind_frozen, kill_valkey, freeze_valkey,
        empty_valkey, drop_agents, half_open, one_identity_twice, replace_agents, kill_machines, cut_off,
        lose_thousand, slow_readers, misbehave, storm,
    )
}  # fmt: skip


async def kill(node: NodeProcess) -> None:
    node.signal(signal.SIGKILL)
    await node.ended()


async def _over(fleet: FaultFleet, node: NodeProcess, metric: str, limit: float) -> float:
    return float(await fleet.metric(node, metric) > limit)


async def _until(value: Callable[[], Awaitable[float]], otherwise: str, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not await value():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.1)
