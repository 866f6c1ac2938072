"""The cost of tracing: CPU time per command of a node without tracing, and of nodes that keep 0 %, 1 % and all traces.

`python -m bench.commands.tracing` prints a table and may write a JSON file. The nodes take turns, round by round, so
that a busy machine disturbs all alike; figures are medians of rounds, differences those of neighbours. Spans go to a
real OTLP/HTTP receiver in this process, whose time is not counted. Bounded in count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.nodes import BenchGateway, commands, running
from bench.output import print_progress, table
from support.otlp_collector import Collector, collecting
from support.simulated_fleet import SimulatedFleet

RATIOS = {"no collector": None, "the same again": None, "0 %": "0", "1 %": "0.01", "100 %": "1"}
"""What is given as `trace_ratio`, and to two nodes nothing: by how much two equal processes differ is what the other
differences have to be seen against."""


@dataclass(frozen=True)
class TracingScale:
    """How much of everything."""

    agents: int = 100
    in_flight: int = 16
    count: int = 1_000
    """Commands of one node in one round: many short rounds, so that what disturbs one disturbs its neighbours too."""
    rounds: int = 25


SCALES = {"full": TracingScale(), "quick": TracingScale(50, 16, 1_000, 9), "smoke": TracingScale(10, 8, 50, 1)}


async def measure(scale: TracingScale, folder: Path, collector: Collector) -> dict[str, dict[str, float]]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in RATIOS}
    async with AsyncExitStack() as stack:
        timer_wheel = await stack.enter_async_context(TimerWheel(silence=3600))
        gateways: dict[str, BenchGateway] = {}
        fleets: list[SimulatedFleet] = []
        with ExitStack() as ending:
            for i, (name, ratio) in enumerate(RATIOS.items()):
                # A Valkey for each: agents of one name, and no node that hears of another's.
                valkey = await stack.enter_async_context(EmbeddedValkey(folder / f"valkey-{i}"))
                traced = () if ratio is None else ("--trace-endpoint", collector.url, "--trace-ratio", ratio)
                gateway = gateways[name] = BenchGateway(f"node-{i}", valkey.url, folder, *traced)
                ending.enter_context(running(gateway))
                fleets.append(
                    SimulatedFleet(f"ws://127.0.0.1:{gateway.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
                )
                await fleets[-1].join(scale.agents)
                await commands(gateway.api, {"node": gateway.pid}, scale.agents, scale.in_flight, scale.count)  # warm
            for turn in range(scale.rounds):
                print_progress(f"round {turn + 1} of {scale.rounds}")
                await asyncio.sleep(2.5)  # what was exported late is not counted as another's
                for name, gateway in random.sample(list(gateways.items()), len(gateways)):
                    rounds[name].append(
                        await commands(gateway.api, {"node": gateway.pid}, scale.agents, scale.in_flight, scale.count)
                    )
            for fleet in fleets:
                await fleet.leave()
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in ("node_us", "p50_ms", "p99_ms")}
        | {
            "more_us": statistics.median(
                run["node_us"] - plain["node_us"] for run, plain in zip(runs, rounds["no collector"], strict=True)
            ),
            "least_us": min(run["node_us"] for run in runs),
        }
        for name, runs in rounds.items()
    }


async def run(scale: TracingScale, out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, collecting() as collector:
        figures = await measure(scale, Path(name), collector)
        traces = len({span.trace for span in collector.spans if span.name.startswith("command ")})
    table(
        ["traces kept", "node µs per command", "more than without", "least of a round", "p50 ms", "p99 ms"],
        [
            [
                name, f"{f['node_us']:.0f}", f"{f['more_us']:+.0f}", f"{f['least_us']:.0f}", f"{f['p50_ms']:.2f}",
                f"{f['p99_ms']:.2f}",
            ]
            for name, f in figures.items()
        ],
    )  # fmt: skip
    print(f"\n{traces} traces of commands came to the collector, in {collector.requests} requests")
    if out is not None:
        out.write_text(json.dumps({"figures": figures, "traces": traces}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="What traces cost.")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(SCALES[given.scale], given.out))


if __name__ == "__main__":
    main()
