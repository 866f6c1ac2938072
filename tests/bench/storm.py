"""What a node does when more agents come than it can take: how soon they are linked, and what others notice.

Two scenes, each with real processes: `fairlead serve` on the first core, Valkey, `fairlead swarm` and the callers of
commands on the second one.

- Return: all agents of one node drop their links in the same instant and come back. Commands go on meanwhile to agents
  that stay.
- Overload: several workers on one core, and agents that arrive faster than these can welcome them, none of which waits
  for another. Their goodput is compared with that of the same workers when the swarm keeps few attempts in progress.

`python -m bench.storm --before FOLDER` plays both with the gateway of another checkout too, in the same run. With
`--realtime` (as root) all but the crowd have the CPU before everything else on this machine, whose other work then does
not show in the latencies. Bounded in count and time; traffic stays on the loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.api import ApiConnection
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import children, cpu_us, pin
from bench.swarm_process import BenchSwarm, addresses

STEADY = 100
"""Agents that stay linked and get commands."""
CALLERS = 4
PAUSE = 0.02
"""Seconds between two commands of a caller: some 150 commands a second load a node little."""
QUIET = 8.0
"""Seconds of commands with which those during the storm are compared."""
LIMIT = 150.0
"""Seconds after which a scene is over, whatever was reached."""
REFUSALS = re.compile(
    r'^fairlead_handshakes_rejected_total\{[^}]*reason="(?:busy|rate|full)"[^}]*\} (\S+)$', re.MULTILINE
)
AGENTS = re.compile(r"^fairlead_agents(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class StormScale:
    agents: int = 10_000
    workers: int = 8
    crowd: int = 20_000
    """Agents of the overload."""
    processes: int = 4
    accept_rate: str = ""
    """The default of the gateway if it is empty."""


def storm_swarm(name: str, gateway: BenchGateway, folder: Path, agents: int, *flags: str, nice: int = 19) -> BenchSwarm:
    """A crowd yields to Valkey, the callers and the agents that stay, who share its core here and would not elsewhere:
    otherwise their latencies would be those of this core and not of the node."""
    source = f"127.0.1.1-{addresses(agents, least=16)}"
    return BenchSwarm(
        name, f"ws://127.0.0.1:{gateway.link}", folder, agents, "--source", source, *flags, nice=nice
    )  # fmt: skip


@contextmanager
def gateway_on_first_core(
    name: str, tree: Path | None, valkey: EmbeddedValkey, folder: Path, *flags: str
) -> Iterator[BenchGateway]:
    """A gateway, of another checkout if `tree` names one."""
    path = os.environ.get("PYTHONPATH")
    if tree is not None:
        os.environ["PYTHONPATH"] = str(tree / "gateway")
    pin(0, 0)
    try:
        gateway = BenchGateway(name, valkey.url, folder, "--log-level", "warning", "--capacity", "19000", *flags)
    finally:
        pin(0, 1)
        os.environ.pop("PYTHONPATH", None)
        if path is not None:
            os.environ["PYTHONPATH"] = path
    with running(gateway):
        yield gateway


def default_rate(tree: Path | None) -> str:
    """The accept rate of a gateway without settings."""
    code = "from fairlead.settings import Settings; print(Settings('n').accept_rate)"
    env = {**os.environ, **({} if tree is None else {"PYTHONPATH": str(tree / "gateway")})}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def waited(pid: int) -> float:
    """Seconds for which the main thread of a process could run and had no CPU, because others had it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


async def scraped(gateway: BenchGateway) -> tuple[int, int]:
    """Agents that are linked, and upgrades that were refused, in all workers."""
    body = await asyncio.to_thread(gateway.get, "/metrics")
    return int(sum(map(float, AGENTS.findall(body)))), int(sum(map(float, REFUSALS.findall(body))))


class Commands:
    """Commands to the agents that stay, all the time; when each began, and how long it took."""

    def __init__(self, port: int) -> None:
        self.took: list[tuple[float, float]] = []
        self._port = port

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for caller in range(CALLERS):
                group.create_task(self._call(caller))

    async def _call(self, caller: int) -> None:
        connection = await ApiConnection.open(self._port, DEVELOPMENT_PLATFORM_TOKEN)
        n = caller
        while True:
            began = time.monotonic()
            self.took.append((began, await connection.command(f"steady-{n % STEADY}")))
            n += CALLERS
            await asyncio.sleep(PAUSE)

    def percentiles(self, since: float, until: float) -> tuple[float, float, int]:
        """p50 and p99 in ms of the commands that began in this time, and their number."""
        found = sorted(took for began, took in self.took if since <= began < until)
        return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000, len(found)


async def come_back(tree: Path | None, valkey: EmbeddedValkey, scale: StormScale, folder: Path) -> dict[str, Any]:
    """All agents of one node come back at once."""
    rate = scale.accept_rate or default_rate(tree)
    with gateway_on_first_core("returned", tree, valkey, folder, "--accept-rate", rate) as gateway:
        steady = storm_swarm("steady", gateway, folder, STEADY, "--processes", "1", nice=0)
        await steady.holding(LIMIT, 0.02)
        storm = storm_swarm(
            "storm", gateway, folder, scale.agents, "--processes", str(scale.processes), "--profile", "storm",
            "--storm-every", "86400", "--rate", str(min(1500.0, float(rate) * 0.9)), "--in-progress", "100000",
        )  # fmt: skip
        commands = Commands(gateway.api)
        calling = asyncio.create_task(commands.run())
        while not storm.holds:
            before, cpu, wait = (await scraped(gateway))[1], cpu_us(gateway.pid), waited(gateway.pid)
            await asyncio.sleep(0.1)
        began = time.monotonic() - 0.5  # the swarm reports twice a second
        await asyncio.sleep(1.0)
        while (found := await scraped(gateway))[0] < scale.agents + STEADY and time.monotonic() < began + LIMIT:
            await asyncio.sleep(1.0)
        ended, cpu, refused = time.monotonic(), cpu_us(gateway.pid) - cpu, found[1] - before
        starved = (waited(gateway.pid) - wait) / (ended - began)
        await asyncio.sleep(3.0)
        quiet = time.monotonic()
        while time.monotonic() < quiet + QUIET:
            await asyncio.sleep(1.0)
            await scraped(gateway)
        calm, storming = commands.percentiles(quiet, time.monotonic()), commands.percentiles(began, ended)
        calling.cancel()
        report = storm.end()
        steady.end()
    back = report["storm"]["back"]
    return {
        "accept_rate": float(rate), "agents": scale.agents, "back": report["storm"]["dropped"] and back,
        "last_s": back["max_ms"] / 1000, "half_s": back["p50_ms"] / 1000, "refused": refused,
        "swarm_refused": report["connect"]["refused"], "node_us": cpu / scale.agents, "starved": starved,
        "calm": calm, "storm": storming, "p99_ratio": storming[1] / calm[1],
    }  # fmt: skip


async def goodput(
    name: str, tree: Path | None, scale: StormScale, folder: Path, rate: float, in_progress: int
) -> dict[str, Any]:
    """How many agents a second are linked, until nine of ten are."""
    aim = scale.crowd * 9 // 10
    async with EmbeddedValkey(folder / f"valkey-{name}") as valkey:
        with gateway_on_first_core(
            name,
            tree,
            valkey,
            folder,
            "--workers",
            str(scale.workers),
            "--accept-rate",
            "100000",
            "--unauthenticated-limit",
            "9000",
        ) as gateway:
            used = sum(map(cpu_us, children(gateway.pid)))
            crowd = storm_swarm(
                name, gateway, folder, scale.crowd, "--processes", str(scale.processes), "--rate", str(rate),
                "--in-progress", str(in_progress),
            )  # fmt: skip
            while not (await scraped(gateway))[0]:
                await asyncio.sleep(0.1)
            began, seen = time.monotonic(), [(0.0, 0)]
            while seen[-1][1] < aim and seen[-1][0] < LIMIT:
                await asyncio.sleep(1.0)
                linked, refused = await scraped(gateway)
                seen.append((round(time.monotonic() - began, 1), linked))
            used = sum(map(cpu_us, children(gateway.pid))) - used
            report = crowd.end()
    seconds, linked = seen[-1]
    return {
        "rate": rate, "in_progress": in_progress, "linked": linked, "seconds": seconds, "goodput": linked / seconds,
        "refused": refused, "swarm_refused": report["connect"]["refused"], "progress": seen,
        "node_us": used / max(1, linked), "welcome": report["connect"]["welcome"],
    }  # fmt: skip


async def overload(tree: Path | None, scale: StormScale, folder: Path) -> dict[str, Any]:
    """What the workers can take, and what they do under three times as much."""
    most = await goodput("able", tree, scale, folder, 100_000, 256)
    return {
        "able": most,
        "over": await goodput("over", tree, scale, folder, 3 * most["goodput"], 1_000_000),
    }  # fmt: skip


def show(figures: dict[str, dict[str, Any]]) -> None:
    rows, more = [], []
    for name, found in figures.items():
        if back := found.get("return"):
            rows.append([
                name, f"{back['agents']:,}", f"{back['half_s']:.1f}", f"{back['last_s']:.1f}", f"{back['refused']:,}",
                f"{back['calm'][1]:.1f}", f"{back['storm'][1]:.1f}", f"{back['p99_ratio']:.2f}",
                f"{back['node_us']:.0f}", f"{back['starved']:.0%}",
            ])  # fmt: skip
        if found.get("overload"):
            able, over = found["overload"]["able"], found["overload"]["over"]
            more.append([
                name, f"{able['goodput']:,.0f}", f"{over['rate']:,.0f}", f"{over['goodput']:,.0f}",
                f"{over['goodput'] / able['goodput']:.2f}", f"{over['linked']:,}", f"{over['refused']:,}",
                str(over["swarm_refused"]),
            ])  # fmt: skip
    if rows:
        table(["all come back at once", "agents", "half s", "last s", "refused", "p99 ms calm", "in the storm", "ratio",
               "node µs each", "waited for the core"], rows)  # fmt: skip
    if more:
        table(["overload", "able to link /s", "arrive /s", "linked /s", "ratio", "linked", "refused", "attempts"], more)


async def run(given: argparse.Namespace) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    scale = StormScale(given.agents, given.workers, given.crowd, given.processes, given.accept_rate)
    trees = {"before": given.before} if given.before else {}
    figures: dict[str, dict[str, Any]] = {}
    pin(0, 1)
    if given.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # the processes that are started inherit it
    for name, tree in {**trees, "now": None}.items():
        figures[name] = {}
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            if given.scene in ("return", "both"):
                print_progress(f"{name}: {scale.agents:,} agents come back at once")
                async with EmbeddedValkey(Path(folder) / "valkey") as valkey:
                    figures[name]["return"] = await come_back(tree, valkey, scale, Path(folder))
            if given.scene in ("overload", "both"):
                print_progress(f"{name}: {scale.crowd:,} agents come to {scale.workers} workers on one core")
                figures[name]["overload"] = await overload(tree, scale, Path(folder))
    show(figures)
    if given.out is not None:
        given.out.write_text(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a node does when more agents come than it can take.")
    parser.add_argument("--scene", choices=("return", "overload", "both"), default="both")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--crowd", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=4, help="of the swarm")
    parser.add_argument("--accept-rate", default="", help="of the node that all come back to, in place of its default")
    parser.add_argument("--before", type=Path, help="another checkout, whose gateway is measured first")
    parser.add_argument("--realtime", action="store_true", help="measure with the CPU before all other work here")
    parser.add_argument("--out", type=Path)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
