"""What a command costs on one server of Redis and on Clusters of one, two and three primaries.

    python -m bench.commands.shards [--count 6000] [--rounds 2]

Two nodes: callers at one, agents at the other. Commands a second, which the cores of this machine bound, since they run
everything; so also the CPU time of the nodes and of all primaries for each command, and the share of it that the
busiest primary has: a Cluster is as fast as that one. The kinds take turns; the best values of all rounds are printed.
Agents and callers live in this process, whose own time is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN

from bench.api import round_trips
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.simulated_fleet import SimulatedFleet
from support.valkey.cluster import Cluster
from support.valkey.server import ValkeyServer

AGENTS = 500
IN_FLIGHT = 256
WARM = 1_000
KINDS = ("one server", "Cluster of 1", "Cluster of 2", "Cluster of 3")
COLUMNS = ("commands/s", "p50 ms", "caller µs", "holder µs", "Valkey µs", "busiest Valkey µs", "all µs")


async def measure(kind: str, folder: Path, count: int) -> tuple[float, ...]:
    single = ValkeyServer(folder / "valkey")
    cluster = None if kind == KINDS[0] else Cluster(folder, int(kind[-1]), replicas=False)
    servers = [single] if cluster is None else list(cluster.servers)
    url = f"redis://:{single.password}@{single.address}" if cluster is None else cluster.url
    try:
        await (single.start() if cluster is None else cluster.start())
        caller, holder = BenchGateway("caller", url, folder), BenchGateway("holder", url, folder)
        with running(caller, holder):
            async with TimerWheel(silence=3600) as timer_wheel:
                fleet = SimulatedFleet(f"ws://127.0.0.1:{holder.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
                await fleet.join(AGENTS)
                port = caller.api
                await round_trips(port, DEVELOPMENT_PLATFORM_TOKEN, AGENTS, IN_FLIGHT, WARM)
                pids = [caller.pid, holder.pid, *(server.pid for server in servers)]
                before = [cpu_us(pid) for pid in pids]
                began = time.perf_counter()
                took = await round_trips(port, DEVELOPMENT_PLATFORM_TOKEN, AGENTS, IN_FLIGHT, count)
                rate = count / (time.perf_counter() - began)
                used = [(cpu_us(pid) - was) / count for pid, was in zip(pids, before, strict=True)]
                await fleet.leave()
        return rate, took[count // 2] * 1000, used[0], used[1], sum(used[2:]), max(used[2:]), sum(used)
    finally:
        for server in servers:
            server.stop()


async def run(count: int, rounds: int) -> None:
    best: dict[str, tuple[float, ...]] = {}
    for number in range(rounds):
        for kind in KINDS:
            print_progress(f"round {number + 1}: {kind}")
            with tempfile.TemporaryDirectory(prefix="bench-") as name:
                figures = await measure(kind, Path(name), count)
            known = best.get(kind, figures)
            best[kind] = max(figures[0], known[0]), *map(min, figures[1:], known[1:])
    table(
        ["Redis", *COLUMNS],
        [[kind, f"{found[0]:.0f}", *(f"{figure:.2f}" for figure in found[1:])] for kind, found in best.items()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a command costs on one server of Redis and on Clusters.")
    parser.add_argument("--count", type=int, default=6_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    uvloop.run(run(given.count, given.rounds))


if __name__ == "__main__":
    main()
