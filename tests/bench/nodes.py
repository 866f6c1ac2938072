"""`make bench`, its second part: what several nodes cost together. Prints tables and writes a JSON file.

Commands that cross nodes (posted to one, answered through another) beside commands that do not; what an idle fleet
costs Redis; how evenly links are spread over the workers of one port. Bounded in count and time; traffic
stays on the loopback. Agents and callers live in this process, whose own time is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text

from bench.api import round_trips
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.free_ports import free_port
from support.simulated_fleet import SimulatedFleet

TIMEOUT = 60.0
WRITES = frozenset(
    {"hset", "hsetnx", "hdel", "hincrby", "set", "del", "unlink", "zadd", "zrem", "zremrangebyscore", "xadd", "xtrim",
     "expire", "pexpire"}
)  # fmt: skip
"""The commands of ours that change something, those inside scripts too."""


@dataclass(frozen=True)
class NodesScale:
    """How much of everything."""

    agents: int = 500
    """That are commanded."""
    counts: tuple[tuple[int, int], ...] = ((1, 2_000), (64, 10_000), (256, 20_000))
    """Commands in flight, and how many in all."""
    idle: tuple[int, ...] = (1_000, 10_000)
    watched: float = 30.0
    """Seconds that an idle fleet is watched."""
    workers: int = 8
    spread: int = 10_000


SCALES = {
    "full": NodesScale(),
    "quick": NodesScale(200, ((1, 500), (256, 5_000)), (500, 2_000), 15.0, 4, 2_000),
    "smoke": NodesScale(20, ((1, 30), (16, 100)), (20, 40), 6.0, 2, 60),
}


class BenchGateway:
    """One `fairlead serve`, with workers or without."""

    def __init__(self, name: str, redis: str, folder: Path, *flags: str) -> None:
        self.link, self.api, self.admin = free_port(), free_port(), free_port()
        with (folder / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead", "serve", "--node", name, "--redis", redis,
                    "--link-port", str(self.link), "--api-port", str(self.api), "--admin-port", str(self.admin),
                    "--accept-rate", "100000", "--heartbeat", "600", "--drain-timeout", "5", *flags,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{name} is not ready:\n{(folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> str:
        """Of the admin port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def _ready(self) -> bool:
        try:
            return bool(self.get("/readyz"))
        except OSError:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT)


@contextmanager
def running(*gateways: BenchGateway) -> Iterator[None]:
    try:
        yield
    finally:
        for gateway in gateways:
            gateway.stop()


async def commands(port: int, pids: dict[str, int], agents: int, in_flight: int, count: int) -> dict[str, float]:
    """Round trips through one API; CPU µs per command of each process."""
    before = {name: cpu_us(pid) for name, pid in pids.items()}
    took = await round_trips(port, DEVELOPMENT_PLATFORM_TOKEN, agents, in_flight, count)
    used = {f"{name}_us": (cpu_us(pid) - before[name]) / count for name, pid in pids.items()}
    return {
        "in_flight": in_flight, "count": len(took), "p50_ms": took[count // 2] * 1000,
        "p99_ms": took[count * 99 // 100] * 1000, **used, "all_us": sum(used.values()),
    }  # fmt: skip


async def across(scale: NodesScale, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Agents on one node, callers on the other; then callers on the same."""
    async with EmbeddedValkey(folder / "across") as valkey, TimerWheel(silence=3600) as timer_wheel:
        caller, holder = BenchGateway("caller", valkey.url, folder), BenchGateway("holder", valkey.url, folder)
        with running(caller, holder):
            fleet = SimulatedFleet(f"ws://127.0.0.1:{holder.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
            await fleet.join(scale.agents)
            pids = {"caller": caller.pid, "holder": holder.pid, "valkey": valkey.pid}
            await commands(caller.api, pids, scale.agents, 16, scale.counts[0][1])  # warm
            figures: dict[str, list[dict[str, float]]] = {}
            for name, gateway in (("two nodes", caller), ("one node", holder)):
                figures[name] = []
                for in_flight, count in scale.counts:
                    print_progress(f"commands, {name}, {in_flight} in flight")
                    figures[name].append(await commands(gateway.api, pids, scale.agents, in_flight, count))
            await fleet.leave()
    return figures


async def idle(scale: NodesScale, folder: Path) -> list[dict[str, float]]:
    """Commands that Redis executes per second for a fleet that does nothing, on two nodes."""
    figures = []
    async with EmbeddedValkey(folder / "idle") as valkey, TimerWheel(silence=3600) as timer_wheel:
        one, two = BenchGateway("one", valkey.url, folder), BenchGateway("two", valkey.url, folder)
        store = Pipeliner(valkey.url)
        store.start()
        with running(one, two):
            await store.wait_available(10)
            fleets = [
                SimulatedFleet(f"ws://127.0.0.1:{node.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
                for node in (one, two)
            ]
            for count in scale.idle:
                for i, fleet in enumerate(fleets):
                    await fleet.join(count // 2 - len(fleet.agents), prefix=f"idle-{i}")
                print_progress(f"{count} idle agents, {scale.watched:g} s")
                await asyncio.sleep(6.0)  # a beat of both: what the claims caused is over
                before, began = await calls(store), time.monotonic()
                await asyncio.sleep(scale.watched)
                seconds = time.monotonic() - began
                made = {name: n - before.get(name, 0) for name, n in (await calls(store)).items()}
                figures.append(
                    {
                        "agents": count,
                        "writes_per_s": sum(n for name, n in made.items() if name in WRITES) / seconds,
                        "all_per_s": sum(made.values()) / seconds,
                    }
                )
            for fleet in fleets:
                await fleet.leave()
        await store.aclose()
    return figures


async def calls(store: Pipeliner) -> dict[str, int]:
    """How often each command was executed so far."""
    lines = text(await store.submit("INFO", "commandstats")).splitlines()
    found = {}
    for line in lines:
        if line.startswith("cmdstat_"):
            name, _, rest = line.removeprefix("cmdstat_").partition(":calls=")
            found[name] = int(rest.partition(",")[0])
    return found


async def spread(scale: NodesScale, folder: Path) -> dict[str, float]:
    """Links of each worker behind one port, as reported by the supervisor's merged metrics."""
    async with EmbeddedValkey(folder / "spread") as valkey, TimerWheel(silence=3600) as timer_wheel:
        gateway = BenchGateway("spread", valkey.url, folder, "--workers", str(scale.workers))
        with running(gateway):
            print_progress(f"{scale.spread} links over {scale.workers} workers")
            fleet = SimulatedFleet(f"ws://127.0.0.1:{gateway.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
            await fleet.join(scale.spread)
            held = [
                float(line.rpartition(" ")[2])
                for line in gateway.get("/metrics").splitlines()
                if line.startswith("fairlead_links{")
            ]
            await fleet.leave()
    if len(held) != scale.workers or sum(held) != scale.spread:
        raise SystemExit(f"{scale.spread} links on {scale.workers} workers, counted were {held}")
    return {
        "workers": len(held),
        "links": sum(held),
        "max": max(held),
        "max_to_mean": max(held) * len(held) / sum(held),
    }


def show(figures: dict[str, object]) -> None:
    rows = []
    for name, runs in figures["commands"].items():  # type: ignore[attr-defined]  # as `across` gives them
        rows += [
            [name, *(f"{run[key]:.{digits}f}" for key, digits in COLUMNS)] for run in runs
        ]  # fmt: skip
    table(["commands across", "in flight", "p50 ms", "p99 ms", "caller µs", "holder µs", "Valkey µs", "all µs"], rows)
    watched = figures["idle"]
    assert isinstance(watched, list)
    table(
        ["idle agents on two nodes", "writes/s", "commands/s"],
        [[f"{f['agents']:,}", f"{f['writes_per_s']:.1f}", f"{f['all_per_s']:.1f}"] for f in watched],
    )
    found = figures["spread"]
    assert isinstance(found, dict)
    table(["links", "workers", "max", "max/mean"], [[
        f"{found['links']:,.0f}", f"{found['workers']:.0f}", f"{found['max']:,.0f}", f"{found['max_to_mean']:.3f}",
    ]])  # fmt: skip


COLUMNS = (
    ("in_flight", 0), ("p50_ms", 2), ("p99_ms", 2), ("caller_us", 0), ("holder_us", 0), ("valkey_us", 0), ("all_us", 0),
)  # fmt: skip


async def run(scale: NodesScale, out: Path | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        figures: dict[str, object] = {
            "commands": await across(scale, folder),
            "idle": await idle(scale, folder),
            "spread": await spread(scale, folder),
        }
    show(figures)
    if out is not None:
        out.write_text(json.dumps(figures, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="What several nodes cost together.")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(SCALES[given.scale], given.out))


if __name__ == "__main__":
    main()
