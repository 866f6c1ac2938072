"""One method on thousands of agents as one run: how long until all results are stored, and what a target costs.

    python -m bench.commands.runs --agents 10000 --nodes 2 --ssh 200
    python -m bench.commands.runs --agents 99999 --nodes 7 --concurrency 2000 --turns 1

Real nodes and a Valkey of their own on this machine, and the agents of `fairlead swarm`, which hold their links to all
nodes but the first; the run is posted to the first. One agent more is that of `fairlead agent run`: somebody types into
its terminal before the run and while it runs. Beside them, if `--ssh` gives a number, as many servers of asyncssh, each
of which is sent one command. CPU is the scheduler's count from the post until the run has ended: that of the nodes and
of Valkey, not that of the agents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from fairlead.client import Client
from fairlead.routing.runs.selection import TARGETS
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from bench.hosts.run import SSH_WAYS, ssh_hosts, ssh_turn
from bench.nodes import BenchGateway, running
from bench.output import medians, print_progress, table
from bench.peers.installation import Installation
from bench.probe import cpu_us
from bench.terminal import SHELL, MemoryWatch, Terminal, quantiles
from support.plain_http import plain_client
from support.swarm_process import Swarm

HEADERS = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
POLL = 0.02
LIMIT = 300.0
RATE = 2_000
"""Links a second while the agents connect."""
EACH = 18_000
"""The agents of one process of the swarm, and at most of one node: each may have 20,000 open files."""
PORTS = 6_500
"""The agents of one source address."""
TERMINAL = "terminal-1"
ECHOES = 100
"""Echoes before the run."""


@dataclass
class RunFigures:
    """Seconds from the post, CPU microseconds per target, bytes per target (Valkey) and per place (nodes)."""

    agents: int
    nodes: int
    concurrency: int
    seconds: float = 0.0
    answered: float = 0.0
    """When the post was answered: until then the agents are selected and stored."""
    first: float = 0.0
    """When a follower had the first result."""
    nodes_us: float = 0.0
    valkey_us: float = 0.0
    all_us: float = 0.0
    valkey_bytes: float = 0.0
    nodes_bytes: float = 0.0
    """What the nodes together had more at most than before, for each place of the concurrency."""
    echo: dict[str, float] = field(default_factory=dict)
    """Of the terminal meanwhile."""


@dataclass(frozen=True)
class RunScene:
    """What runs: the nodes, Valkey, the first node's API, and a terminal through it."""

    http: httpx2.AsyncClient
    pids: dict[str, list[int]]
    valkey: EmbeddedValkey
    terminal: Terminal

    def cpu(self) -> dict[str, float]:
        return {name: sum(map(cpu_us, those)) for name, those in self.pids.items()}

    async def first_result(self, path: str) -> float:
        async with self.http.stream("GET", f"{path}/results", params={"follow": "true"}) as stream:
            async for line in stream.aiter_lines():
                if "agent" in json.loads(line):
                    return time.monotonic()
        raise SystemExit(f"{path} has no result")

    async def typing(self, over: asyncio.Event) -> list[float]:
        """Echoes until it is over, the last of which is waited for."""
        times: list[float] = []
        while not over.is_set():
            times += await self.terminal.echoes(LIMIT, 1)
        return times

    async def run(self, body: dict[str, Any], found: RunFigures) -> None:
        """Post a run and wait for its end."""
        watch = MemoryWatch({str(pid): pid for pid in self.pids["nodes"]})
        held, calm = await memory(self.valkey), sum(watch.sample().values())
        over = asyncio.Event()
        typing, sampling = asyncio.create_task(self.typing(over)), asyncio.create_task(watch.keep_sampling())
        before, began = self.cpu(), time.monotonic()
        answer = await self.http.post("/v1/runs", json=body)
        if answer.status_code != 202:
            sampling.cancel()
            raise SystemExit(f"the run was not accepted: {answer.text}")
        found.answered = time.monotonic() - began
        path = f"/v1/runs/{answer.json()['id']}"
        first = asyncio.create_task(self.first_result(path))
        async with asyncio.timeout(LIMIT):
            while not (state := (await self.http.get(path)).json())["ended"]:
                await asyncio.sleep(POLL)
        found.seconds = time.monotonic() - began
        targets = found.agents + 1  # and the one with the terminal
        assert state["counts"] == {"ok": targets}, state
        after = self.cpu()
        found.first = await first - began
        found.nodes_us, found.valkey_us = ((after[name] - before[name]) / targets for name in ("nodes", "valkey"))
        found.all_us = found.nodes_us + found.valkey_us
        over.set()
        sampling.cancel()
        found.echo = quantiles(await typing)
        found.nodes_bytes = (sum(watch.largest.values()) - calm) / min(found.concurrency, targets)
        found.valkey_bytes = (await memory(self.valkey) - held) / targets


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


@asynccontextmanager
async def agents(number: int, holders: list[BenchGateway], folder: Path) -> AsyncIterator[None]:
    """`number` simulated agents, as many at each of the holders, and the one with the terminal."""
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "agent.log").open("wb") as log:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "fairlead", "agent", "run", "--url", f"ws://127.0.0.1:{holders[0].link}",
                 "--id", TERMINAL],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        )  # fmt: skip
    try:
        for place, holder in enumerate(holders):
            each = number // len(holders) + (place < number % len(holders))
            swarm = Swarm(
                f"ws://127.0.0.1:{holder.link}", folder, f"--agents={each}", f"--processes={-(-each // EACH)}",
                f"--rate={RATE}", f"--id-prefix=bench{place}", f"--source=127.0.0.2-{3 + each // PORTS}",
            )  # fmt: skip
            processes.append(swarm.process)
            await asyncio.to_thread(swarm.until_holding)
            print_progress(f"{each:,} agents at node {place + 1} of {len(holders)} that hold them")
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            await asyncio.to_thread(process.communicate)


async def measure(given: argparse.Namespace, folder: Path) -> tuple[dict[str, float], list[RunFigures]]:
    """The echo before the runs, and the runs."""
    figures = []
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        nodes = [BenchGateway(f"node-{n + 1}", valkey.url, folder) for n in range(given.nodes)]
        stack.enter_context(running(*nodes))
        await stack.enter_async_context(agents(given.agents, nodes[1:] or nodes, folder))
        api = f"http://127.0.0.1:{nodes[0].api}"
        http = await stack.enter_async_context(plain_client(base_url=api, headers=HEADERS, timeout=60))
        client = await stack.enter_async_context(Client(api, DEVELOPMENT_PLATFORM_TOKEN))
        async with client.command(TERMINAL, "shell", SHELL, deadline=3_600) as shell:
            terminal = Terminal(shell)
            await terminal.ready()
            alone = quantiles(await terminal.echoes(60, ECHOES))
            pids = {"nodes": [node.pid for node in nodes], "valkey": [valkey.pid]}
            scene = RunScene(http, pids, valkey, terminal)
            for turn in range(given.turns):
                for concurrency in given.concurrency:
                    found = RunFigures(given.agents, given.nodes, concurrency)
                    body = {"method": given.method, "selector": given.selector, "concurrency": concurrency,
                            "run_deadline": 300}  # fmt: skip
                    await scene.run(body, found)
                    figures.append(found)
                    print_progress(f"turn {turn + 1}: {found}")
            await shell.cancel()
    return alone, figures


async def beside(hosts: int, turns: int, fetch: bool, folder: Path) -> dict[str, dict[str, float]]:
    """asyncssh to `hosts` servers; empty if it is not there."""
    python = Installation(fetch).python if hosts else None
    if python is None:
        return {}
    async with ssh_hosts(python, hosts, folder) as (file, server):
        return {
            way: medians([await ssh_turn(python, file, server, way) for _ in range(max(turns, 1))]) for way in SSH_WAYS
        }


def show(given: argparse.Namespace, alone: dict[str, float], figures: list[RunFigures]) -> None:
    rows = []
    for concurrency in given.concurrency:
        those = [one for one in figures if one.concurrency == concurrency]

        def median(member: str, those: list[RunFigures] = those) -> float:
            return float(statistics.median(getattr(one, member) for one in those))

        echo = statistics.median(one.echo["p99_ms"] for one in those)
        rows.append(
            [f"{given.agents:,}", str(given.nodes), f"{concurrency:,}", f"{median('answered'):.2f}",
             f"{median('first') * 1000:.0f}", f"{median('seconds'):.2f}", f"{median('nodes_us'):.0f}",
             f"{median('valkey_us'):.0f}", f"{median('all_us'):.0f}", f"{median('nodes_bytes'):,.0f}",
             f"{median('valkey_bytes'):,.0f}", f"{alone['p99_ms']:.1f}, {echo:.1f}"]
        )  # fmt: skip
    head = ["agents", "nodes", "concurrency", "answered s", "first result ms", "ended s", "nodes µs", "Valkey µs"]
    table([*head, "all µs", "nodes B in flight", "Valkey B", "echo p99 ms, before and meanwhile"], rows)


def show_beside(hosts: int, ways: dict[str, dict[str, float]]) -> None:
    head = [f"asyncssh, {hosts} hosts", "s", "ms per host", "caller CPU µs per host", "hosts CPU µs per host"]
    table(
        head,
        [
            [way, f"{one['seconds']:.2f}", f"{one['seconds'] * 1000 / hosts:.1f}",
             f"{one['caller_ms'] * 1000 / hosts:,.0f}", f"{one['hosts_ms'] * 1000 / hosts:,.0f}"]
            for way, one in ways.items()
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="One method on thousands of agents.")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[500, 2_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--method", default="sys.info")
    parser.add_argument("--selector", default="*")
    parser.add_argument("--ssh", type=int, default=0, metavar="HOSTS", help="servers of asyncssh beside them")
    parser.add_argument("--no-fetch", action="store_true", help="install nothing: asyncssh is left out if it is absent")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    holders = max(1, given.nodes - 1)
    if given.agents > holders * EACH:
        parser.error(f"--agents {given.agents}: {holders} nodes hold at most {holders * EACH}: give more --nodes")
    if given.agents >= TARGETS:
        parser.error(f"--agents {given.agents}: a run has at most {TARGETS} targets, and the terminal is one of them")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        alone, figures = uvloop.run(measure(given, Path(name)))
        ways = uvloop.run(beside(given.ssh, given.turns, not given.no_fetch, Path(name)))
    show(given, alone, figures)
    if ways:
        show_beside(given.ssh, ways)
    if given.out is not None:
        kept = {"runs": [asdict(one) for one in figures], "echo_before": alone, "asyncssh": ways}
        given.out.write_text(json.dumps(kept, indent=2))


if __name__ == "__main__":
    main()
