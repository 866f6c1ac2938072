"""Lists of a large fleet beside commands: what `GET /v1/agents` costs, and how long posts wait while others read
lists.

`python -m bench.commands.lists --agents 100000 --listers 0 4 10 16`: one real node and a Valkey of its own on this
machine. The agents are rows that are held elsewhere; two in 100,000 have the fact that the listers select by, so each
list reads everybody and returns nearly nobody. Listers are processes of their own at a lower priority: what they
decode is no latency of a post. Posts start by the clock and go to one agent of the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from fairlead.agent import Agent
from fairlead.fleet.directory import Directory
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.gateway.steady_commands import Outcome, SteadyCommands
from support.simulated_fleet import FACTS

AT_ONCE = 500
"""Agents that are written at once: the backlog of the store has room for them."""
SELECTED_EVERY = 50_000
RATE = 30.0
"""Posts per second."""
SECONDS = 20.0
"""Of each phase."""
TIMEOUT = 60.0
FAR_MS = 3_600_000
BEAT_AGE = re.compile(r"^fairlead_heartbeat_age_seconds (\S+)$", re.MULTILINE)
LISTER = """
import collections, json, sys, time, urllib.error, urllib.request
codes = collections.Counter()
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            codes[answer.status] += 1
    except urllib.error.HTTPError as e:
        codes[e.code] += 1
        time.sleep(0.1)
print(json.dumps(codes))
"""
"""Reads one list again and again; argv: URL, token, seconds."""


@dataclass
class Phase:
    """Posts beside so many listers; milliseconds."""

    listers: int
    lists: dict[str, int]
    """How often the listers got which status."""
    posts: int
    not_ok: int
    p50: float
    p99: float
    worst: float


@dataclass
class Walk:
    """All pages of a list."""

    query: str
    agents: int
    requests: int
    seconds: float
    node_us: float
    """CPU per agent of the fleet, as Valkey's."""
    valkey_us: float


async def fill(store: Pipeliner, agents: int) -> None:
    directory = Directory(store)
    valid_until = int(time.time() * 1000) + FAR_MS
    common, selected = msgspec.json.encode(FACTS), msgspec.json.encode({**FACTS, "rare": "1"})
    for start in range(0, agents, AT_ONCE):
        claims = [
            directory.claim(
                f"agent-{n:07d}", "elsewhere#1", "boot", 1, f"s{n:015x}",
                selected if n % SELECTED_EVERY == 17 else common, valid_until,
            )
            for n in range(start, min(start + AT_ONCE, agents))
        ]  # fmt: skip
        await asyncio.gather(*claims)


def walk(gateway: BenchGateway, valkey: int, query: str, agents: int) -> Walk:
    before, began = (cpu_us(gateway.pid), cpu_us(valkey)), time.monotonic()
    found = requests = 0
    cursor: str | None = ""
    while cursor is not None:
        page = _get(gateway, f"/v1/agents?{query}" + (f"&cursor={cursor}" if cursor else ""))
        found, requests = found + len(page["agents"]), requests + 1
        cursor = page.get("cursor")
    took = time.monotonic() - began
    node, store = cpu_us(gateway.pid) - before[0], cpu_us(valkey) - before[1]
    return Walk(query, found, requests, took, node / agents, store / agents)


def _get(gateway: BenchGateway, path: str) -> dict[str, Any]:
    """Asks again what is refused because the node is busy, after the time that it names."""
    headers = {"authorization": f"Bearer {DEVELOPMENT_PLATFORM_TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{gateway.api}{path}", headers=headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as e:
            if e.code != 503:
                raise
            time.sleep(float(e.headers.get("Retry-After") or 1))


def _linked(gateway: BenchGateway) -> bool:
    try:
        return bool(_get(gateway, "/v1/agents/real")["state"] == "online")
    except urllib.error.HTTPError:
        return False


@contextmanager
def listers(count: int, gateway: BenchGateway, codes: dict[str, int]) -> Iterator[None]:
    """So many at once for one phase; what they were answered is added to `codes`."""
    url = f"http://127.0.0.1:{gateway.api}/v1/agents?limit=1000&selector=rare%3D1"
    argv = ["nice", "-n", "5", sys.executable, "-c", LISTER, url, DEVELOPMENT_PLATFORM_TOKEN, str(SECONDS)]
    started = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(count)]
    yield
    for lister in started:
        output, _ = lister.communicate(timeout=90)
        for code, times in json.loads(output).items():
            codes[code] = codes.get(code, 0) + times


async def phase(count: int, gateway: BenchGateway) -> Phase:
    codes: dict[str, int] = {}
    commands = SteadyCommands(f"http://127.0.0.1:{gateway.api}", DEVELOPMENT_PLATFORM_TOKEN, ["real"], "hello", RATE)
    with listers(count, gateway, codes):
        async with commands:
            await asyncio.sleep(SECONDS)
    return _phase(count, codes, commands.outcomes)


def _phase(count: int, codes: dict[str, int], outcomes: Sequence[Outcome]) -> Phase:
    took = sorted(outcome.took * 1000 for outcome in outcomes)
    p50, p99 = (took[int(share * (len(took) - 1))] for share in (0.5, 0.99))
    return Phase(count, codes, len(took), sum(o.state != "ok" for o in outcomes), p50, p99, took[-1])


async def hello() -> str:
    return "hello"


async def measure(agents: int, counts: Sequence[int], folder: Path) -> tuple[list[Walk], list[Phase]]:
    async with EmbeddedValkey(folder / "valkey") as valkey:
        store = Pipeliner(valkey.url, batch_timeout=30.0)
        store.start()
        await store.wait_available(10)
        gateway = await asyncio.to_thread(BenchGateway, "lists", valkey.url, folder)
        with running(gateway):
            print_progress(f"writing {agents:,} agents")
            await fill(store, agents)
            await store.aclose()
            queries = ("limit=1000", "limit=1000&selector=rare%3D1", "limit=1000&state=away")
            walks = [await asyncio.to_thread(walk, gateway, valkey.pid, query, agents) for query in queries]
            agent = Agent(f"ws://127.0.0.1:{gateway.link}", id="real", token=DEVELOPMENT_AGENT_TOKEN)
            agent.command("hello")(hello)
            serving = asyncio.create_task(agent.serve())
            async with asyncio.timeout(TIMEOUT):
                while not await asyncio.to_thread(_linked, gateway):
                    await asyncio.sleep(0.1)
            phases = []
            for count in counts:
                print_progress(f"commands beside {count} listers")
                phases.append(await phase(count, gateway))
            age = BEAT_AGE.search(await asyncio.to_thread(gateway.get, "/metrics"))
            print_progress(f"seconds since the node's last heartbeat: {age[1] if age else 'unknown'}")
            agent.stop()
            await serving
    return walks, phases


async def run(agents: int, counts: Sequence[int], out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        walks, phases = await measure(agents, counts, Path(name))
    table(
        ["all pages of", "agents found", "requests", "s", "node µs per agent of the fleet", "Valkey µs"],
        [
            [w.query, f"{w.agents:,}", str(w.requests), f"{w.seconds:.1f}", f"{w.node_us:.1f}", f"{w.valkey_us:.1f}"]
            for w in walks
        ],
    )
    table(
        ["listers", "lists by status", "commands", "not ok", "p50 ms", "p99 ms", "longest ms"],
        [
            [str(p.listers), json.dumps(p.lists), str(p.posts), str(p.not_ok), f"{p.p50:.1f}", f"{p.p99:.1f}",
             f"{p.worst:.0f}"]
            for p in phases
        ],
    )  # fmt: skip
    if out is not None:
        out.write_text(json.dumps([[asdict(w) for w in walks], [asdict(p) for p in phases]], indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, default=100_000, metavar="COUNT")
    parser.add_argument("--listers", type=int, nargs="+", default=[0, 4, 10, 16], metavar="COUNT")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.agents, given.listers, given.out))


if __name__ == "__main__":
    main()
