"""How long it takes until two nodes that join two full ones have their share of the links, and what it costs.

`python -m bench.moving.rebalance --agents 10000`: real nodes with their default settings, a Valkey of their own, the
operator's own rebalance and rate of moves in a pass every ten seconds, and a load balancer that chooses at random among
the nodes that are ready. Meanwhile commands run on a sample of the agents, and on one agent of the SDK. That one is
among those that move if it is idle now and then: nobody is moved inside a command, which is what an agent is all the
time at a high `--probe-rate`. Agents and callers live in this process; slots and closes are seen by its clock, late and
several at once when it was late itself, which it reports.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.moving.moving_agents import PREFIX, MovingAgents, ProbedAgent, above_budget, most_within
from bench.output import print_progress, table
from bench.probe import cpu_us
from faults.balancer import Balancer
from support.gateway.kubelet import Kubelet, probing
from support.gateway.process import GatewayProcess
from support.gateway.rebalance_passes import RebalancePasses
from support.gateway.steady_commands import Outcome, SteadyCommands

EVEN = 1.10
LAST = 15.0
"""Seconds after which the last agents that were told to move have left: the grace of their old links, and some."""
LOOK = 0.25
"""Seconds between two looks at where the agents are."""
SAMPLE = 200
"""Agents that get commands."""
LIMIT = 1_800.0


@dataclass(frozen=True)
class Load:
    """What happens meanwhile."""

    rate: float
    """Commands a second on the sample."""
    probe_rate: float
    quiet: float
    """Seconds without a move, to compare with."""
    period: float
    """Seconds between two passes of the operator."""


class RebalanceScene:
    """The nodes, what is in front of them, and the agents."""

    def __init__(self, folder: Path, valkey: EmbeddedValkey, kubelet: Kubelet, agents: MovingAgents) -> None:
        self._folder = folder
        self._valkey = valkey
        self.kubelet = kubelet
        self.agents = agents
        self.passes = RebalancePasses(valkey.url)
        self.even_at: float | None = None
        """Since when the spread has been at most EVEN without a break."""

    async def start_node(self) -> None:
        """A node is in front of agents when the kubelet has found it ready."""
        node = GatewayProcess(self._folder, self._valkey.url, name=f"node-{len(self.kubelet.nodes) + 1}")
        await asyncio.to_thread(node.start)
        self.kubelet.nodes.append(node)
        async with asyncio.timeout(60):
            while int(node.link.rpartition(":")[2]) not in self.kubelet.ports():
                await asyncio.sleep(0.05)

    async def holder(self, agent: str) -> str:
        """The node that has the agent's link."""
        headers = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http:
            answer = await http.get(f"{self.kubelet.nodes[0].api}/v1/agents/{agent}")
            return str(answer.json().get("node"))

    def cpu(self) -> float:
        """Seconds of CPU of all nodes and Valkey so far."""
        return sum(cpu_us(pid) for pid in (self._valkey.pid, *(node.pid for node in self.kubelet.nodes))) / 1e6

    async def connect_all(self) -> None:
        shown = time.monotonic()
        while (linked := len(self.agents.holders)) < self.agents.options.agents:
            if time.monotonic() - shown > 10:
                print_progress(f"{linked:,} of {self.agents.options.agents:,} agents are linked")
                shown = time.monotonic()
            await asyncio.sleep(LOOK)

    async def watch_spread(self) -> None:
        while True:
            if self.spread()[0] > EVEN:
                self.even_at = None
            elif self.even_at is None:
                self.even_at = time.monotonic()
            await asyncio.sleep(LOOK)

    def spread(self) -> tuple[float, list[int]]:
        """Over all nodes, whether they take new links now or not."""
        counts = dict.fromkeys((int(node.link.rpartition(":")[2]) for node in self.kubelet.nodes), 0)
        links = sorted((counts | Counter(self.agents.holders.values())).values(), reverse=True)
        return links[0] * len(links) / max(1, sum(links)), links


def unanswered(outcomes: list[Outcome]) -> float:
    """The longest time between two answers, in seconds."""
    ends = sorted(outcome.ended for outcome in outcomes)
    return max((later - earlier for earlier, later in itertools.pairwise(ends)), default=0.0)


async def rebalance(scene: RebalanceScene, probed: ProbedAgent, load: Load) -> dict[str, Any]:
    api, token, agents = scene.kubelet.nodes[0].api, DEVELOPMENT_PLATFORM_TOKEN, scene.agents
    sample = [
        f"{PREFIX}-{n}"
        for n in random.Random(2).sample(range(agents.options.agents), min(SAMPLE, agents.options.agents))
    ]
    async with (
        SteadyCommands(api, token, sample, "echo", load.rate) as commands,
        SteadyCommands(api, token, ["probed"], "echo", load.probe_rate) as probes,
    ):
        print_progress(f"{load.quiet:g} s without a move, {load.rate:g} + {load.probe_rate:g} commands a second")
        before, began = scene.cpu(), time.monotonic()
        await asyncio.sleep(load.quiet)
        idle_cores = (scene.cpu() - before) / (time.monotonic() - began)
        quiet_gap, held_by = unanswered(probes.outcomes), await scene.holder("probed")
        print_progress("two nodes join")
        await scene.start_node()
        await scene.start_node()
        before, began = scene.cpu(), time.monotonic()
        looking = asyncio.create_task(scene.watch_spread())
        plan = await scene.passes.run_until_ended(load.period, LIMIT / 2)
        seconds, used = time.monotonic() - began, scene.cpu() - before
        await asyncio.sleep(LAST)
        looking.cancel()
    assert plan.ended is not None
    moves, outcomes = len(agents.slots), commands.outcomes + probes.outcomes
    spread, links = scene.spread()
    ran = agents.counters.commands + probed.ran.total()
    rates = scene.passes.rates
    return {
        "agents": agents.options.agents,
        "outcome": plan.ended.outcome,
        "even_after_s": None if scene.even_at is None else scene.even_at - began,
        "ended_after_s": seconds,
        "max_by_mean": spread,
        "links": links,
        "moves": moves,
        "moves_per_agent": moves / agents.options.agents,
        "most_moves_of_an_agent": max(agents.moves.values(), default=0),
        "most_rate": max(rate for _, rate in rates),
        "slots_within_1_s": most_within(agents.slots, 1),
        "slots_within_10_s": most_within(agents.slots, 10),
        "slots_above_budget": above_budget(agents.slots, rates),
        "closes_within_1_s": most_within(agents.closes, 1),
        "closes_within_10_s": most_within(agents.closes, 10),
        "closes_above_budget": above_budget(agents.closes, rates),
        "longest_without_a_link_s": agents.longest_away,
        "without_a_link_at_the_end": agents.options.agents - agents.count().linked,
        "commands": len(outcomes),
        "lost": sum(outcome.state != "ok" for outcome in outcomes),
        "twice": ran - len({outcome.id for outcome in outcomes if outcome.id}),
        "probes": len(probes.outcomes),
        "probe_moved": await scene.holder("probed") != held_by,
        "unanswered_quiet_s": quiet_gap,
        "unanswered_s": unanswered(probes.outcomes),
        "cpu_per_move_ms": (used - idle_cores * seconds) / max(1, moves) * 1000,
        "idle_cores": idle_cores,
        "late_s": agents.counters.lag.longest,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def stop_all(nodes: list[GatewayProcess]) -> None:
    for node in nodes:
        node.stop()


async def play(count: int, connect_rate: float, load: Load, folder: Path) -> dict[str, Any]:
    nodes: list[GatewayProcess] = []
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        stack.callback(stop_all, nodes)
        kubelet = await stack.enter_async_context(probing(nodes))
        agents = MovingAgents(count, connect_rate, kubelet.ports)
        scene = RebalanceScene(folder, valkey, kubelet, agents)
        stack.push_async_callback(scene.passes.aclose)
        await scene.start_node()
        await scene.start_node()
        balancer = Balancer(kubelet.ports, random.Random(3))
        await balancer.start()
        stack.push_async_callback(balancer.stop)
        probed = ProbedAgent(balancer.port)
        await stack.enter_async_context(probed.serving())
        connecting = asyncio.create_task(agents.run())
        try:
            await scene.connect_all()
            return await rebalance(scene, probed, load)
        finally:
            connecting.cancel()
            await asyncio.wait({connecting})
            await agents.leave()


def show(f: dict[str, Any]) -> None:
    even = f["even_after_s"]
    table(
        ["two nodes join two", ""],
        [
            ["agents, commands meanwhile", f"{f['agents']:,}, {f['commands']:,}"],
            [f"seconds until max/mean is at most {EVEN:.2f}", "never" if even is None else f"{even:.0f}"],
            ["the rebalance ended", f"{f['outcome']}, after {f['ended_after_s']:.0f} s"],
            ["max/mean at the end", f"{f['max_by_mean']:.3f} ({'/'.join(map(str, f['links']))})"],
            [
                "moves, by agent, most of one",
                f"{f['moves']:,}, {f['moves_per_agent']:.2f}, {f['most_moves_of_an_agent']}",
            ],
            ["budget, most per second", f"{f['most_rate']:.0f}"],
            ["moves asked for, most in 1 s and 10 s", f"{f['slots_within_1_s']}, {f['slots_within_10_s']}"],
            ["closes, most in 1 s and 10 s", f"{f['closes_within_1_s']}, {f['closes_within_10_s']}"],
            [
                "above the budget in one second: moves asked for, closes",
                f"{f['slots_above_budget']}, {f['closes_above_budget']}",
            ],
            ["longest without a link", f"{f['longest_without_a_link_s'] * 1000:.0f} ms"],
            ["without a link at the end", str(f["without_a_link_at_the_end"])],
            ["commands lost, run twice", f"{f['lost']}, {f['twice']}"],
            [
                f"one agent, {f['probes']:,} commands, {'moved' if f['probe_moved'] else 'not moved'}:"
                " longest without an answer before two nodes join, and afterwards",
                f"{f['unanswered_quiet_s'] * 1000:.0f} ms, {f['unanswered_s'] * 1000:.0f} ms",
            ],
            ["CPU of nodes and Valkey per move", f"{f['cpu_per_move_ms']:.1f} ms"],
            ["agents and callers were late by at most", f"{f['late_s'] * 1000:.0f} ms"],
            ["load average", f"{f['load']:.1f}"],
        ],
    )


async def run(given: argparse.Namespace) -> None:
    load = Load(given.rate, given.probe_rate, given.quiet, given.period)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with asyncio.timeout(LIMIT):
            figures = await play(given.agents, given.connect_rate, load, Path(name))
    show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Two nodes join two full ones: how links and commands fare.")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--connect-rate", type=float, default=300.0, help="first connections per second")
    parser.add_argument("--rate", type=float, default=100.0, help="commands a second on a sample of the agents")
    parser.add_argument("--probe-rate", type=float, default=20.0, help="commands a second on one more agent")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without a move, to compare with")
    parser.add_argument("--period", type=float, default=10.0, help="seconds between two passes of the operator")
    parser.add_argument("--out", type=Path)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
