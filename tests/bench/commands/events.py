"""What an event with qos 1 costs, and how many one node takes in a second.

    python -m bench.commands.events --rates 1000 4000 16000

One node and a Valkey of their own on this machine, and agents of `fairlead swarm` that each emit ten events a second.
An event counts once its agent has the receipt, which means that it is stored. CPU is the scheduler's count while the
agents emit: where the node uses a whole core, the figure is what a core takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.swarm_process import Swarm

EVERY = 0.1
"""Seconds between two events of one agent."""


@dataclass(frozen=True)
class EventFigures:
    """Events a second; CPU microseconds per stored event; the share of a core that the node used."""

    offered: float
    stored: float
    node_us: float
    valkey_us: float
    node_cores: float


async def measure(rates: Sequence[int], seconds: float, folder: Path) -> list[EventFigures]:
    figures = []
    for rate in rates:
        own = folder / str(rate)
        own.mkdir()
        async with EmbeddedValkey(own / "valkey") as valkey:
            node = BenchGateway("node-1", valkey.url, own)
            with running(node):
                figures.append(await asyncio.to_thread(emit, node, valkey.pid, rate, seconds, own))
        print_progress(str(figures[-1]))
    return figures


def emit(node: BenchGateway, valkey: int, rate: int, seconds: float, folder: Path) -> EventFigures:
    agents = max(1, round(rate * EVERY))
    swarm = Swarm(
        f"ws://127.0.0.1:{node.link}", folder, f"--agents={agents}", "--rate=2000", "--profile=chatty",
        f"--event-every={EVERY}", f"--duration={seconds}",
    )  # fmt: skip
    try:
        swarm.until_holding()
        began, before = time.monotonic(), (cpu_us(node.pid), cpu_us(valkey))
        result = swarm.result(seconds + 120)
        took, after = time.monotonic() - began, (cpu_us(node.pid), cpu_us(valkey))
    finally:
        swarm.process.terminate()
        swarm.process.wait(60)
    events = result["events"]
    node_us, valkey_us = (b - a for a, b in zip(before, after, strict=True))
    return EventFigures(
        offered=events["sent"] / took, stored=events["stored"] / took, node_us=node_us / events["stored"],
        valkey_us=valkey_us / events["stored"], node_cores=node_us / 1e6 / took,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Events with qos 1 through one node.")
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 4_000, 16_000], help="events a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = asyncio.run(measure(given.rates, given.seconds, Path(name)))
    table(
        ["events/s sent", "events/s stored", "node µs", "Valkey µs", "node, cores"],
        [
            [f"{one.offered:,.0f}", f"{one.stored:,.0f}", f"{one.node_us:.1f}", f"{one.valkey_us:.1f}",
             f"{one.node_cores:.2f}"]
            for one in figures
        ],
    )  # fmt: skip
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(one) for one in figures], indent=2))


if __name__ == "__main__":
    main()
