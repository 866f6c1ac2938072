"""One method on thousands of agents as one run: how long until all results are stored, and what a target costs.

`python -m bench.commands.runs --agents 10000 --nodes 2`: real nodes and a Valkey of their own on this machine, and the
agents of `fairlead swarm`, which hold their links to the last node; the run is posted to the first. CPU is the
scheduler's count from the post until the run has ended: that of the nodes and of Valkey, not that of the agents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.plain_http import plain_client
from support.swarm_process import Swarm

HEADERS = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
POLL = 0.02
LIMIT = 300.0
RATE = 2_000
"""Links a second while the agents connect."""


@dataclass
class RunFigures:
    """Seconds from the post, CPU microseconds per target, and bytes of Valkey per target."""

    agents: int
    nodes: int
    concurrency: int
    seconds: float = 0.0
    answered: float = 0.0
    """When the post was answered: until then the agents are selected and stored."""
    nodes_us: float = 0.0
    valkey_us: float = 0.0
    all_us: float = 0.0
    valkey_bytes: float = 0.0


async def one_run(
    http: httpx2.AsyncClient, body: dict[str, Any], pids: dict[str, list[int]], found: RunFigures
) -> RunFigures:
    """Post a run and wait for its end."""
    before = {name: sum(map(cpu_us, those)) for name, those in pids.items()}
    began = time.monotonic()
    answer = await http.post("/v1/runs", json=body)
    assert answer.status_code == 202, answer.text
    found.answered = time.monotonic() - began
    path = f"/v1/runs/{answer.json()['id']}"
    async with asyncio.timeout(LIMIT):
        while not (state := (await http.get(path)).json())["ended"]:
            await asyncio.sleep(POLL)
    found.seconds = time.monotonic() - began
    assert state["counts"] == {"ok": found.agents}, state
    used = {name: (sum(map(cpu_us, those)) - before[name]) / found.agents for name, those in pids.items()}
    found.nodes_us, found.valkey_us = used["nodes"], used["valkey"]
    found.all_us = found.nodes_us + found.valkey_us
    return found


async def memory(valkey: EmbeddedValkey) -> int:
    from fairlead.store.pipeliner import Pipeliner
    from fairlead.store.reply import text

    store = Pipeliner(valkey.url)
    store.start()
    try:
        await store.wait_available(10)
        info = text(await store.submit("INFO", "memory"))
    finally:
        await store.aclose()
    return int(next(line for line in info.splitlines() if line.startswith("used_memory:")).partition(":")[2])


async def measure(given: argparse.Namespace, folder: Path) -> list[RunFigures]:
    async with EmbeddedValkey(folder / "valkey") as valkey:
        nodes = [BenchGateway(f"node-{n + 1}", valkey.url, folder) for n in range(given.nodes)]
        flags = (
            f"--agents={given.agents}",
            "--processes=1",
            f"--rate={RATE}",
            "--id-prefix=bench",
            "--source=127.0.0.2-3",
        )
        with running(*nodes):
            swarm = Swarm(f"ws://127.0.0.1:{nodes[-1].link}", folder, *flags, "--source=127.0.0.2-3")
            try:
                await asyncio.to_thread(swarm.until_holding)
                pids = {"nodes": [node.pid for node in nodes], "valkey": [valkey.pid]}
                figures = []
                async with plain_client(
                    base_url=f"http://127.0.0.1:{nodes[0].api}", headers=HEADERS, timeout=60
                ) as http:
                    for turn in range(given.turns):
                        for concurrency in given.concurrency:
                            body = {"method": given.method, "selector": given.selector, "concurrency": concurrency,
                                    "run_deadline": 300}  # fmt: skip
                            held = await memory(valkey)
                            found = RunFigures(given.agents, given.nodes, concurrency)
                            figures.append(await one_run(http, body, pids, found))
                            found.valkey_bytes = (await memory(valkey) - held) / given.agents
                            print_progress(f"turn {turn + 1}: {found}")
                return figures
            finally:
                swarm.process.kill()
                swarm.process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="One method on thousands of agents.")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[500, 2_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--method", default="sys.info")
    parser.add_argument("--selector", default="*")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = uvloop.run(measure(given, Path(name)))
    rows = []
    for concurrency in given.concurrency:
        those = [one for one in figures if one.concurrency == concurrency]

        def median(member: str, those: list[RunFigures] = those) -> float:
            return float(statistics.median(getattr(one, member) for one in those))

        rows.append(
            [f"{given.agents:,}", str(given.nodes), str(concurrency), f"{median('answered'):.2f}",
             f"{median('seconds'):.2f}", f"{median('nodes_us'):.0f}", f"{median('valkey_us'):.0f}",
             f"{median('all_us'):.0f}", f"{median('valkey_bytes'):.0f}"]
        )  # fmt: skip
    table(
        ["agents", "nodes", "concurrency", "answered s", "ended s", "nodes µs", "Valkey µs", "all µs", "Valkey B"], rows
    )
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(one) for one in figures], indent=2))


if __name__ == "__main__":
    main()
