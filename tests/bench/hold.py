"""Holds a great many registered agents on one machine, and measures what they cost while they are held.

`fairlead serve --workers` behind one port, a Valkey of its own, and `fairlead swarm` at the other end: real processes,
real sockets, all on the loopback. So the kernel holds both ends of each connection, which the figures say. Memory
is what is there with the agents minus what was there without; CPU is the scheduler's count; commands are posted while
all are held. With `--storm 10`, ten of a hundred agents drop their links as soon as all are held, and the figures begin
when they are back. In the end all leave.

The default is small. An agent takes some 14 KB here, of which the kernel has 10 for both ends of its connection:
`--agents 200000` takes some 4 GB and ten minutes, and a million 14 GB, 61 workers and as many processes of the swarm:

    python -m bench.hold --agents 1000000 --heartbeat 120 --storm 10 --watched 240 --out million.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from fairlead.fleet.schema import INDEX_SHARDS, index_key
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, text

from bench.api import round_trips
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import children, cpu_us, memory

EACH = 16_500
"""Agents for one process at most: 20,000 open files are a usual limit, and a worker that is restarted meanwhile
leaves its links to the others."""
PORTS = 6_500
"""Connections from one source address: from a quarter of its ports on (7,058) binding searches for milliseconds."""
TIMEOUT = 1_800.0


@dataclass(frozen=True)
class Usage:
    """Bytes, and CPU microseconds so far."""

    nodes_pss: int
    nodes_uss: int
    nodes_rss: int
    valkey_pss: int
    valkey_used: int
    slab: int
    sockets: int
    """Pages of TCP buffers."""
    available: int
    nodes_us: float
    valkey_us: float
    at: float


@dataclass(frozen=True)
class HoldScene:
    """The processes that are watched."""

    nodes: list[int]
    valkey: int
    store: Pipeliner

    async def usage(self) -> Usage:
        sizes = [memory(pid) for pid in self.nodes]
        kernel = meminfo()
        used = text(await self.store.submit("INFO", "memory")).partition("used_memory:")[2].split()[0]
        return Usage(
            sum(one.pss for one in sizes), sum(one.uss for one in sizes), sum(one.rss for one in sizes),
            memory(self.valkey).pss, int(used), kernel["Slab"], sockets(), kernel["MemAvailable"],
            sum(map(cpu_us, self.nodes)), cpu_us(self.valkey), time.monotonic(),
        )  # fmt: skip

    async def known(self) -> int:
        """Agents that Valkey knows."""
        return sum([integer(await self.store.submit("ZCARD", index_key(s))) for s in range(INDEX_SHARDS)])


def meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}


def sockets() -> int:
    """Bytes of buffers of all TCP sockets."""
    line = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:"))
    return int(line.split()[line.split().index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE")


class HoldSwarm:
    """`fairlead swarm`, until it is stopped."""

    def __init__(self, url: str, agents: int, rate: float, storm: int, folder: Path) -> None:
        self._err, self._out = folder / "swarm.err", folder / "swarm.json"
        with self._err.open("wb") as err, self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead", "swarm", "--url", url, "--agents", str(agents),
                    "--processes", str(math.ceil(agents / EACH)), "--rate", str(rate), "--id-prefix", "held",
                    "--source", f"127.0.0.2-{1 + math.ceil(agents / PORTS)}", "-o", "json",
                    "--profile", f"idle={100 - storm},storm={storm}" if storm else "idle", "--storm-every", "86400",
                ],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    @property
    def pids(self) -> list[int]:
        return children(self._process.pid)

    async def holding(self) -> None:
        deadline, shown = time.monotonic() + TIMEOUT, ""
        while "holding:" not in (lines := self._err.read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the swarm does not hold its agents:\n{lines[-2000:]}")
            if lines and (last := lines.splitlines()[-1]) != shown:
                print_progress(f"   {(shown := last).strip()}")
            await asyncio.sleep(1)

    def end(self) -> dict[str, object]:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(120)
        found: dict[str, object] = json.loads(self._out.read_text() or "{}")
        return found


async def commands(port: int, agents: int, in_flight: int, count: int, scene: HoldScene) -> dict[str, float]:
    """Round trips to random agents."""
    before = await scene.usage()
    took = await round_trips(port, DEVELOPMENT_PLATFORM_TOKEN, agents, in_flight, count, prefix="held")
    after = await scene.usage()
    return {
        "in_flight": in_flight, "count": len(took), "p50_ms": took[count // 2] * 1000,
        "p99_ms": took[count * 99 // 100] * 1000, "longest_ms": took[-1] * 1000,
        "nodes_us": (after.nodes_us - before.nodes_us) / count,
        "valkey_us": (after.valkey_us - before.valkey_us) / count,
    }  # fmt: skip


def links_of(gateway: BenchGateway) -> list[float]:
    """The links of each worker."""
    lines = gateway.get("/metrics").splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("fairlead_links{")]


async def linked(gateway: BenchGateway, agents: int) -> float:
    """Wait until the workers have so many links together. Returns the seconds that it took."""
    began = time.monotonic()
    while sum(links_of(gateway)) != agents:
        if time.monotonic() > began + TIMEOUT:
            raise SystemExit(f"the workers have {sum(links_of(gateway)):,.0f} links, {agents:,} are expected")
        await asyncio.sleep(1)
    return time.monotonic() - began


async def hold(given: argparse.Namespace, workers: int, folder: Path) -> dict[str, object]:
    agents, rate, watched, count = given.agents, given.rate, given.watched, given.commands
    async with EmbeddedValkey(folder / "valkey") as valkey:
        print_progress(f"{workers} workers, {agents:,} agents at {rate:,.0f}/s")
        flags = ("--workers", str(workers), "--capacity", "19000", "--heartbeat", str(given.heartbeat),
                 "--log-level", "warning")  # fmt: skip
        gateway = BenchGateway("held", valkey.url, folder, *flags)
        store = Pipeliner(valkey.url)
        store.start()
        with running(gateway):
            await store.wait_available(10)
            scene = HoldScene([gateway.pid, *children(gateway.pid)], valkey.pid, store)
            before, load = await scene.usage(), os.getloadavg()[0]
            swarm = HoldSwarm(f"ws://127.0.0.1:{gateway.link}", agents, rate, given.storm, folder)
            try:
                await swarm.holding()
                known = await scene.known()
                if known != agents:
                    raise SystemExit(f"Valkey knows {known} agents, {agents} are held")
                joined = await scene.usage()
                if given.storm:
                    await asyncio.sleep(2)  # for the storm to be over and seen
                back = await linked(gateway, agents)
                await asyncio.sleep(watched / 4)  # for what the last welcomes have caused
                held, others = await scene.usage(), sum(map(cpu_us, swarm.pids))
                own = sum(memory(pid).uss for pid in swarm.pids)
                print_progress(f"{known:,} held, known to Valkey; idle for {watched:g} s")
                await asyncio.sleep(watched)
                idle, others = await scene.usage(), sum(map(cpu_us, swarm.pids)) - others
                ran = []
                for in_flight, posted in ((1, count // 5), (64, count)):
                    print_progress(f"commands, {in_flight} in flight")
                    ran.append(await commands(gateway.api, agents, in_flight, posted, scene))
                links = links_of(gateway)
            finally:
                leaving = time.monotonic()
                ended = swarm.end()
            await linked(gateway, 0)
            left = time.monotonic() - leaving
        await store.aclose()
    seconds = idle.at - held.at
    generator = ended["generator"]
    assert isinstance(generator, dict)
    return {
        "agents": agents, "workers": workers, "load_before": load, "swarm": ended, "links": links,
        "back_s": back, "left_s": left,
        "before": asdict(before), "held": asdict(held), "commands": ran,
        # Before the commands, of which an agent remembers the ids; less what its processes are without agents.
        "swarm_bytes": own - generator["bytes"] + generator["bytes_grown"],
        "accept_us": (joined.nodes_us - before.nodes_us) / agents,
        "accept_valkey_us": (joined.valkey_us - before.valkey_us) / agents,
        "idle_cores": (idle.nodes_us - held.nodes_us) / 1e6 / seconds,
        "idle_valkey_cores": (idle.valkey_us - held.valkey_us) / 1e6 / seconds,
        "idle_swarm_cores": others / 1e6 / seconds,
    }  # fmt: skip


def show(f: dict[str, object]) -> None:
    before, held, ended = f["before"], f["held"], f["swarm"]
    assert isinstance(before, dict)
    assert isinstance(held, dict)
    assert isinstance(ended, dict)
    agents = ended["agents"]

    def grown(key: str) -> list[str]:
        size = held[key] - before[key]
        return [f"{size / 2**20:,.0f}", f"{size / agents:,.0f}"]

    own = f["swarm_bytes"]
    assert isinstance(own, int)
    table(
        [f"{agents:,} agents held on {f['workers']} workers", "MiB", "bytes each"],
        [
            ["nodes, PSS", *grown("nodes_pss")],
            ["nodes, USS", *grown("nodes_uss")],
            ["nodes, RSS", *grown("nodes_rss")],
            ["Valkey, used_memory", *grown("valkey_used")],
            ["Valkey, PSS", *grown("valkey_pss")],
            ["swarm, USS", f"{own / 2**20:,.0f}", f"{own / agents:,.0f}"],
            ["kernel, slab (both ends of each connection)", *grown("slab")],
            ["kernel, TCP buffers", *grown("sockets")],
            ["MemAvailable, less by", f"{(before['available'] - held['available']) / 2**20:,.0f}",
             f"{(before['available'] - held['available']) / agents:,.0f}"],
        ],
    )  # fmt: skip
    links = f["links"]
    assert isinstance(links, list)
    connect, rtt = ended["connect"]["welcome"], ended["heartbeats"]["rtt"]
    table(
        ["", ""],
        [
            ["set-up", f"{ended['ramp_s']:.1f} s, {agents / ended['ramp_s']:,.0f}/s"],
            ["back after the storm, gone in the end, s", f"{f['back_s']:.0f}, {f['left_s']:.0f}"],
            ["refused, lost, missing", f"{ended['connect']['refused'] or 0}, {ended['lost']}, {ended['missing']}"],
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
    assert isinstance(ran, list)
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
    workers = given.workers or max(2, math.ceil(given.agents / EACH))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = await hold(given, workers, Path(name))
    show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold many agents on one machine and measure what they cost.")
    parser.add_argument("--agents", type=int, default=5_000)
    parser.add_argument("--workers", type=int, help=f"default: one for {EACH} agents, at least two")
    parser.add_argument("--rate", type=float, default=3_000, help="first connects per second")
    parser.add_argument("--watched", type=float, default=30.0, help="seconds for the idle CPU")
    parser.add_argument("--commands", type=int, default=5_000, help="with 64 in flight; a fifth of it one by one")
    parser.add_argument("--heartbeat", type=float, default=25.0, help="seconds")
    parser.add_argument("--storm", type=int, default=0, help="of 100 agents, those that lose their links at once")
    parser.add_argument("--out", type=Path)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
