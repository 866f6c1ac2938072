"""Fairlead beside its peers, in one run on one machine. Prints tables and writes a JSON file.

CPU time per operation and bytes per connection are what to compare: wall times on a shared machine are noise. The
peers only echo on plain connections; Fairlead's node also greets, claims in Valkey and keeps facts. Bounded in
count and time; traffic stays on the loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

import uvloop

from bench.links.plain import echo, idle_in_turn, stamps
from bench.links.registered import registered
from bench.links.scale import SCALES, Scale
from bench.links.tables import report, report_rounds
from bench.output import print_progress
from bench.peers.c_programs import built
from bench.peers.catalogue import Peers
from bench.probe import pin

LIMIT = 2400.0
"""Seconds for all of it. A full run takes a third of that on two quiet cores."""


async def bounded(scale: Scale, out: Path) -> None:
    limit = asyncio.timeout(LIMIT)
    try:
        async with limit:
            await run(scale, out)
    except TimeoutError as e:
        if not limit.expired():
            raise
        raise SystemExit(f"the benchmark did not end within {LIMIT:g} s") from e


async def run(scale: Scale, out: Path) -> None:
    started, program = time.monotonic(), built("round_clients")
    pin(0, 1)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as temporary:
        folder = Path(temporary)
        peers = Peers(folder, scale.fetch)
        print_progress("1/4 the real node with registered agents")
        node = await registered(peers, folder, scale)
        plain = await idle_in_turn(peers, scale)
        echoes: dict[int, dict[str, dict[str, float]]] = {}
        processes = {name: peers.start(name) for name in peers.names}
        try:
            stamped_rounds = await stamps(processes, program, scale)
            for connections in (1, 100, 1000):
                print_progress(f"4/4 echo over {connections} connections")
                messages = scale.messages // (5 if connections == 1 else 1)
                echoes[connections] = await echo(processes, connections, messages, scale.rounds)
        finally:
            for process in processes.values():
                process.stop()
    report(node, plain, echoes, scale)
    report_rounds(stamped_rounds)
    figures = {
        "node": node, "plain": plain, "echo": echoes, "cpus": os.cpu_count(),
        "rounds": stamped_rounds, "versions": peers.versions(),
        "scale": {"agents": scale.agents, "crowd": scale.crowd, "turns": scale.rounds},
    }  # fmt: skip
    await asyncio.to_thread(out.write_text, json.dumps(figures, indent=1))
    print_progress(f"\n{time.monotonic() - started:.0f} s; figures in {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="full: minutes; quick: seconds")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the figures go")
    options = parser.parse_args()
    uvloop.run(bounded(SCALES[options.scale], options.out))


if __name__ == "__main__":
    main()
