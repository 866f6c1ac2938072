"""How evenly links are spread over the workers of one port, also after a worker was killed and came back, and what
commands cost that nearly always cross workers.

`python -m bench.workers --links 10000 --workers 8`: `fairlead serve --workers` with a Valkey of its own. The links
that the killed worker had are opened anew, as agents do. Writes a JSON file; bounded in count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import tempfile
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.nodes import BenchGateway, commands, running
from bench.output import print_progress, table
from bench.probe import children, cpu_us
from support.simulated_fleet import SimulatedFleet

TIMEOUT = 120.0
IN_FLIGHT = ((1, 500), (64, 5_000), (256, 8_000))
"""Commands in flight, and how many in all."""


def held(gateway: BenchGateway) -> list[int]:
    """Links of each worker, as the supervisor's merged metrics report them."""
    lines = gateway.get("/metrics").splitlines()
    return [int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("fairlead_links{")]


def cpu_of(gateway: BenchGateway) -> float:
    """CPU microseconds of all workers so far."""
    return sum(cpu_us(pid) for pid in children(gateway.pid))


async def restarted(gateway: BenchGateway, fleet: SimulatedFleet, workers: int) -> None:
    """Kills one worker and waits until another one is in its place."""
    before = children(gateway.pid)
    linked = fleet.linked
    victim = max(before, key=cpu_us)  # the process of the admin port has done the least
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT):
        while fleet.linked == linked or len(set(children(gateway.pid)) - {victim}) < len(before):
            await asyncio.sleep(0.1)
        while len(await asyncio.to_thread(held, gateway)) != workers:
            await asyncio.sleep(0.2)


async def measure(links: int, workers: int, folder: Path) -> dict[str, list[dict[str, object]]]:
    found: list[dict[str, object]] = []
    commanded: list[dict[str, object]] = []
    async with EmbeddedValkey(folder / "valkey") as valkey, TimerWheel(silence=3600) as timer_wheel:
        gateway = BenchGateway("workers", valkey.url, folder, "--workers", str(workers))
        with running(gateway):
            fleet = SimulatedFleet(f"ws://127.0.0.1:{gateway.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
            for state in ("all workers new", "one worker restarted"):
                print_progress(f"{links:,} links over {workers} workers, {state}")
                if found:
                    await restarted(gateway, fleet, workers)
                joining, before = links - fleet.linked, cpu_of(gateway)
                await fleet.join(joining)
                used = cpu_of(gateway) - before
                counts = await asyncio.to_thread(held, gateway)
                if len(counts) != workers or sum(counts) != links:
                    raise SystemExit(f"{links} links on {workers} workers, counted were {counts}")
                found.append(
                    {
                        "state": state,
                        "links": counts,
                        "max_to_mean": max(counts) * workers / links,
                        "us_per_link": used / joining,
                    }
                )
                if not commanded:
                    pids = {f"worker {number}": pid for number, pid in enumerate(children(gateway.pid))}
                    commanded = await commands_in_turn(gateway, {**pids, "valkey": valkey.pid}, links)
            await fleet.leave()
    return {"states": found, "commands": commanded}


async def commands_in_turn(gateway: BenchGateway, pids: dict[str, int], agents: int) -> list[dict[str, object]]:
    """Round trips through the shared API port, with more and more in flight."""
    await commands(gateway.api, pids, agents, 16, min(agents, 500))  # warm
    rows: list[dict[str, object]] = []
    for in_flight, each in IN_FLIGHT:
        print_progress(f"commands, {in_flight} in flight")
        run = await commands(gateway.api, pids, agents, in_flight, min(each, in_flight * agents))
        valkey = run["valkey_us"]
        rows.append(
            {"in_flight": in_flight, "p50_ms": run["p50_ms"], "p99_ms": run["p99_ms"], "count": run["count"],
             "workers_us": run["all_us"] - valkey, "valkey_us": valkey}
        )  # fmt: skip
    return rows


async def run(links: int, workers: int, out: Path | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = await measure(links, workers, Path(name))
    rows = [
        [str(one["state"]), str(one["links"]), f"{one['max_to_mean']:.3f}", f"{one['us_per_link']:.0f}"]
        for one in figures["states"]
    ]
    table(["", "links of each worker", "max/mean", "CPU µs per link"], rows)
    table(
        ["commands in flight", "p50 ms", "p99 ms", "workers CPU µs", "Valkey CPU µs"],
        [
            [f"{one['in_flight']}", *(f"{one[key]:.1f}" for key in ("p50_ms", "p99_ms")),
             *(f"{one[key]:.0f}" for key in ("workers_us", "valkey_us"))]
            for one in figures["commands"]
        ],
    )  # fmt: skip
    if out is not None:
        out.write_text(json.dumps({"workers": workers, **figures}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="How evenly links are spread over workers, and what commands cost that cross them."
    )
    parser.add_argument("--links", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.links, given.workers, given.out))


if __name__ == "__main__":
    main()
