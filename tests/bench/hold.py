"""Holds a great many registered agents on one machine, and measures what they cost while they are held.

`fairlead serve --workers` behind one port, a Valkey of its own, and `fairlead swarm` at the other end: real processes,
real sockets, all on the loopback. So the kernel holds both ends of each connection, which the figures say. Valkey,
which usually has a machine of its own, has precedence over all others (they have nice 19, and it is favoured among the
sessions that Linux shares the CPU between, which takes root): otherwise a hundred workers and agents that want the two
cores at once would leave it a hundredth of them. Memory is what is there with the agents minus what was there without;
CPU is the scheduler's count; commands are posted while all are held. With `--storm 10`, ten of a hundred agents drop
their links as soon as all are held, and the figures begin when they are back. In the end all leave.

The default is small. An agent takes some 14 KB here, of which the kernel has 10 for both ends of its connection:
`--agents 200000` takes some 4 GB and ten minutes, and a million 14 GB, 61 workers and as many processes of the swarm:

    python -m bench.hold --agents 1000000 --heartbeat 120 --storm 10 --watched 240 --out million.json

`--plot million.svg` draws memory and CPU time over the agents that have joined.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from bench.api import round_trips
from bench.hold_usage import Growth, HoldScene, memory_rows
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import children, cpu_us, memory, open_files, set_autogroup
from bench.swarm_process import BenchSwarm, addresses

EACH = 16_500
"""Agents for one process at most: 20,000 open files are a usual limit, and a worker that is restarted meanwhile
leaves its links to the others."""
TIMEOUT = 1_800.0
SAMPLE = 5.0
"""Seconds between two points of the plot of memory and CPU time over agents."""


class HeldGroup:
    """One `fairlead serve --workers`, and the swarm of the agents that it holds."""

    def __init__(self, number: int, redis: str, given: argparse.Namespace, folder: Path) -> None:
        self.prefix = f"held{number}"
        self.agents = given.agents // given.gateways
        self._given, self._folder = given, folder / self.prefix
        self._folder.mkdir()
        workers = given.workers or max(2, math.ceil(self.agents / EACH))
        self.gateway = BenchGateway(
            self.prefix, redis, self._folder, "--workers", str(workers), "--capacity", "19000",
            "--heartbeat", str(given.heartbeat), "--log-level", "warning",
        )  # fmt: skip
        self.workers = workers
        self.swarm: BenchSwarm | None = None
        self.ended: dict[str, Any] = {}
        self._without_agents: dict[int, int] = {}
        """The files that each of its processes had open before the agents connected."""

    def connect(self) -> BenchSwarm:
        self._without_agents = {pid: open_files(pid) for pid in children(self.gateway.pid)}
        url, storm = f"ws://127.0.0.1:{self.gateway.link}", self._given.storm
        self.swarm = BenchSwarm(
            self.prefix, url, self._folder, self.agents, "--processes", str(math.ceil(self.agents / EACH)),
            "--rate", str(self._given.rate), "--source", f"127.0.0.2-{1 + addresses(self.agents)}",
            "--profile", f"idle={100 - storm},storm={storm}" if storm else "idle", "--storm-every", "86400",
        )  # fmt: skip
        return self.swarm

    def links(self) -> list[float]:
        """The links of each worker."""
        lines = self.gateway.get("/metrics").splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("fairlead_links{")]

    async def linked(self, agents: int) -> None:
        """Wait until the workers have so many links together."""
        deadline = time.monotonic() + TIMEOUT
        while sum(self.links()) != agents:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers have {sum(self.links()):,.0f} links, {agents:,} are expected")
            await asyncio.sleep(1)

    def end_swarm(self) -> None:
        if self.swarm is not None:
            self.ended = self.swarm.end()
            self.swarm = None

    def kill_workers(self, share: float) -> int:
        """Kill so many of its workers at once; returns how many links they had."""
        links = {pid: open_files(pid) - before for pid, before in self._without_agents.items()}
        holders = [pid for pid, count in links.items() if count > self.agents / self.workers / 2]
        killed = holders[: math.ceil(len(holders) * share)]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        return sum(links[pid] for pid in killed)


class HeldFleet:
    """All groups over one Valkey, and what is measured of them."""

    def __init__(self, groups: list[HeldGroup], scene: HoldScene, given: argparse.Namespace) -> None:
        self._groups, self._scene, self._given = groups, scene, given
        self.agents = sum(group.agents for group in groups)
        self.growth: list[Growth] = []
        """Of the set-up."""
        self.missing = 0
        """Agents that are linked and that the index in Valkey does not have."""

    async def connect(self) -> float:
        """Let the groups connect, one after the other. Returns the seconds."""
        began = time.monotonic()
        watching = asyncio.create_task(self._scene.watch(self.growth, SAMPLE))
        for group in self._groups:
            await group.connect().holding(TIMEOUT, 1.0)
            print_progress(f"{group.prefix}: {group.agents:,} agents held after {time.monotonic() - began:.0f} s")
        took = time.monotonic() - began
        watching.cancel()
        self.growth.append(await self._scene.growth())
        for group in self._groups:
            known = await self._scene.known(group.prefix)
            if sum(known) != group.agents:
                print_progress(f"{group.prefix}: the index has {sum(known)} of {group.agents} agents, by shard {known}")
                self.missing += group.agents - sum(known)
        return took

    async def linked(self, share: float = 1) -> float:
        """Wait until each group has this share of its links. Returns the seconds."""
        began = time.monotonic()
        for group in self._groups:
            await group.linked(int(group.agents * share))
        return time.monotonic() - began

    def swarms_us(self) -> float:
        return sum(cpu_us(pid) for group in self._groups if group.swarm for pid in group.swarm.pids)

    def swarms_bytes(self) -> int:
        return sum(memory(pid).uss for group in self._groups if group.swarm for pid in group.swarm.pids)

    async def commands(self, in_flight: int, count: int) -> dict[str, float]:
        """Round trips to random agents, posted to the first gateway."""
        before = await self._scene.usage()
        prefixes = [group.prefix for group in self._groups]
        api = self._groups[0].gateway.api
        took = await round_trips(
            api, DEVELOPMENT_PLATFORM_TOKEN, self._groups[0].agents, in_flight, count, prefixes
        )  # fmt: skip
        after = await self._scene.usage()
        return {
            "in_flight": in_flight, "count": len(took), "p50_ms": took[count // 2] * 1000,
            "p99_ms": took[count * 99 // 100] * 1000, "longest_ms": took[-1] * 1000,
            "nodes_us": (after.nodes_us - before.nodes_us) / count,
            "valkey_us": (after.valkey_us - before.valkey_us) / count,
        }  # fmt: skip

    async def lose_workers(self, share: float) -> dict[str, float]:
        """Kill this share of all workers at once, and wait until their agents are back. `missing` are those that are
        not after TIMEOUT."""
        began = time.monotonic()
        lost = sum(group.kill_workers(share) for group in self._groups)
        await asyncio.sleep(1)  # for the lost links to be missing in the sums
        missing = 0.0
        try:
            await self.linked()
        except TimeoutError as e:
            print_progress(str(e))
            missing = self.agents - sum(sum(group.links()) for group in self._groups)
        return {"lost": lost, "back_s": time.monotonic() - began, "missing": missing}

    async def leave(self) -> float:
        """All agents leave. Returns the seconds until no node has a link."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as leaving:
            for group in self._groups:
                leaving.create_task(asyncio.to_thread(group.end_swarm))
        await self.linked(0)
        return time.monotonic() - began

    def ended(self) -> dict[str, Any]:
        """What the swarms counted: sums of counts, the longest of times."""
        return merged([group.ended for group in self._groups])


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report of several: counts are added, times and shares are the greatest. A report lacks the counts of what did
    not happen to it."""
    result: dict[str, Any] = {}
    for key in {key: None for report in reports for key in report}:
        values = [report[key] for report in reports if key in report]
        first = values[0]
        if isinstance(first, dict):
            result[key] = merged(values)
        elif isinstance(first, bool):
            result[key] = all(values)
        elif key.endswith(("_ms", "_s")) or not isinstance(first, int | float):
            result[key] = max(values) if isinstance(first, int | float) else first
        else:
            result[key] = sum(values)
    return result


async def hold(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    watched, count = given.watched, given.commands
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        os.nice(19)  # for this process and all that it starts from here on
        if not set_autogroup(valkey.pid, -19):
            print_progress("only root can favour Valkey: it may be too slow to hold a great many agents")
        store = Pipeliner(valkey.url)
        store.start()
        stack.push_async_callback(store.aclose)
        groups = []
        for number in range(given.gateways):
            groups.append(HeldGroup(number, valkey.url, given, folder))
            stack.enter_context(running(groups[-1].gateway))
            stack.callback(groups[-1].end_swarm)
        await store.wait_available(10)
        workers = sum(group.workers for group in groups)
        pids = [pid for group in groups for pid in (group.gateway.pid, *children(group.gateway.pid))]
        scene = HoldScene(pids, valkey.pid, store)
        fleet = HeldFleet(groups, scene, given)
        print_progress(f"{workers} workers of {len(groups)} gateways, {fleet.agents:,} agents at {given.rate:,.0f}/s")
        before, load = await scene.usage(), os.getloadavg()[0]
        set_up = await fleet.connect()
        joined = await scene.usage()
        if given.storm:
            await asyncio.sleep(2)  # for the storm to be over and seen
        back = await fleet.linked()
        await asyncio.sleep(watched / 4)  # for what the last welcomes have caused
        held, others, own = await scene.usage(), fleet.swarms_us(), fleet.swarms_bytes()
        print_progress(f"{fleet.agents:,} held; idle for {watched:g} s")
        await asyncio.sleep(watched)
        idle, others = await scene.usage(), fleet.swarms_us() - others
        ran = []
        for in_flight, posted in ((1, count // 5), (64, count)):
            print_progress(f"commands, {in_flight} in flight")
            ran.append(await fleet.commands(in_flight, posted))
        links = [count for group in groups for count in group.links()]
        lost = {}
        if given.killed:
            print_progress(f"{given.killed:g} % of the workers are killed")
            lost = await fleet.lose_workers(given.killed / 100)
        left = await fleet.leave()
        ended = fleet.ended()
    seconds = idle.at - held.at
    generator = ended["generator"]
    return {
        "agents": fleet.agents, "workers": workers, "load_before": load, "swarm": ended, "links": links,
        "set_up_s": set_up, "missing_in_index": fleet.missing, "back_s": back, "left_s": left, "killed": lost,
        "before": asdict(before), "held": asdict(held), "commands": ran, "growth": [asdict(g) for g in fleet.growth],
        # Before the commands, of which an agent remembers the ids; less what its processes are without agents.
        "swarm_bytes": own - generator["bytes"] + generator["bytes_grown"],
        "accept_us": (joined.nodes_us - before.nodes_us) / fleet.agents,
        "accept_valkey_us": (joined.valkey_us - before.valkey_us) / fleet.agents,
        "idle_cores": (idle.nodes_us - held.nodes_us) / 1e6 / seconds,
        "idle_valkey_cores": (idle.valkey_us - held.valkey_us) / 1e6 / seconds,
        "idle_swarm_cores": others / 1e6 / seconds,
    }  # fmt: skip


def show(f: dict[str, Any]) -> None:
    agents, ended, killed = f["agents"], f["swarm"], f["killed"]
    table([f"{agents:,} agents held on {f['workers']} workers", "MiB", "bytes each"], memory_rows(f))
    links = f["links"]
    connect, rtt = ended["connect"]["welcome"], ended["heartbeats"]["rtt"]
    table(
        ["", ""],
        [
            ["set-up", f"{f['set_up_s']:.1f} s, {agents / f['set_up_s']:,.0f}/s"],
            ["back after the storm, gone in the end, s", f"{f['back_s']:.0f}, {f['left_s']:.0f}"],
            ["links lost with killed workers, back after s, missing",
             f"{killed['lost']:,}, {killed['back_s']:.0f}, {killed['missing']:,.0f}" if killed else "–"],
            ["refused, lost, missing, missing in the index",
             f"{ended['connect']['refused'] or 0}, {ended['lost']}, {ended['missing']}, {f['missing_in_index']}"],
            ["node and Valkey CPU µs per accept", f"{f['accept_us']:.0f}, {f['accept_valkey_us']:.0f}"],
            ["connect to welcome p50, p99, longest ms",
             f"{connect['p50_ms']:,.1f}, {connect['p99_ms']:,.1f}, {connect['max_ms']:,.1f}"],
            ["idle: cores of nodes, Valkey, swarm",
             f"{f['idle_cores']:.3f}, {f['idle_valkey_cores']:.3f}, {f['idle_swarm_cores']:.3f}"],
            ["heartbeat round trip p50, p99 ms", f"{rtt['p50_ms']}, {rtt['p99_ms']}"],
            ["links of the workers, least and most", f"{min(links):,.0f}, {max(links):,.0f}"],
            ["load average before", f"{f['load_before']:.2f}"],
        ],
    )  # fmt: skip
    ran = f["commands"]
    table(
        ["commands while all are held, in flight", "p50 ms", "p99 ms", "longest ms", "nodes µs", "Valkey µs"],
        [
            [str(r["in_flight"]), *(f"{r[key]:,.1f}" for key in ("p50_ms", "p99_ms", "longest_ms")),
             *(f"{r[key]:,.0f}" for key in ("nodes_us", "valkey_us"))]
            for r in ran
        ],
    )  # fmt: skip


async def run(given: argparse.Namespace) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = await hold(given, Path(name))
    show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=2))
    if given.plot is not None:
        from bench.record.plots import hold as draw  # here, because only a plot needs matplotlib

        draw(given.plot, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold many agents on one machine and measure what they cost.")
    parser.add_argument("--agents", type=int, default=5_000)
    parser.add_argument(
        "--gateways", type=int, default=1, help="that share the agents, and whose agents connect in turn"
    )
    parser.add_argument("--workers", type=int, help=f"of each gateway; default: one for {EACH} agents, at least two")
    parser.add_argument("--rate", type=float, default=3_000, help="first connects per second")
    parser.add_argument("--watched", type=float, default=30.0, help="seconds for the idle CPU")
    parser.add_argument("--commands", type=int, default=5_000, help="with 64 in flight; a fifth of it one by one")
    parser.add_argument("--heartbeat", type=float, default=25.0, help="seconds")
    parser.add_argument("--storm", type=int, default=0, help="of 100 agents, those that lose their links at once")
    parser.add_argument("--killed", type=float, default=0, help="of 100 workers, those that are killed in the end")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="memory and CPU time over agents, as SVG")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
