"""What selectors over a large fleet cost Redis: to count, to read a page, to find a few agents; what a change of a fact
and a claim cost, and the bytes of an agent.

`python -m bench.commands.selectors --agents 1000000`: a Valkey of its own on this machine, and this process as the
node's side. The rows are written by the same calls as those of nodes. CPU is that of Valkey, as INFO has it
(`used_cpu_user` and `used_cpu_sys`), least of the repetitions. `--rows` reads all rows instead of columns, as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import uvloop

from fairlead.fleet.columns.agent_columns import AgentColumns
from fairlead.fleet.columns.column_builder import ColumnBuilder
from fairlead.fleet.columns.facts_change import FactsChange
from fairlead.fleet.directory import IN_ONE_CALL, Directory
from fairlead.fleet.selector import Selector, parse
from fairlead.shards import SHARDS
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text

from bench.output import print_progress, table

AT_ONCE = 500
FAR_MS = 24 * 3600_000
PAGE = 100
REPEATED = 3
CLAIMS = 20_000
RARE = 10_000
"""One agent in so many has the fact `rare`: 100 of a million."""
SELECTORS = (
    "rare=yes", "host=h0000777", "os=linux", "os!=linux", "zone=eu-3,os=linux", "kernel<6.1.9", "!drained",
    "!drained,os.version<12,env notin (test)", "label.env=prod,fact.os=linux,zone in (eu-1,eu-2),kernel>=6.1.5",
)  # fmt: skip

_decode = msgspec.json.Decoder(dict[str, str]).decode


@dataclass
class Use:
    """Of one request, ms of CPU, and how many rows it read."""

    selector: str
    what: str
    agents: int
    rows: int
    valkey_ms: float
    node_ms: float


def facts(n: int, version: str = "0.1.0") -> dict[str, str]:
    found = {
        "os": "windows" if n % 20 == 3 else "linux", "arch": "x86_64", "hostname": f"h{n:07d}", "host": f"h{n:07d}",
        "kernel": f"6.1.{n % 40}", "cpus": str(1 << n % 6), "python": f"3.12.{n % 9}", "sdk": version,
        "os.name": "debian", "os.version": str(9 + n % 5), "zone": f"eu-{n % 8}", "env": ("prod", "test")[n % 3 == 0],
    }  # fmt: skip
    return found | ({"rare": "yes"} if n % RARE == 17 else {})


class Bench:
    def __init__(self, store: Pipeliner, agents: int, rows: bool) -> None:
        self._store = store
        self._agents = agents
        self._rows = rows
        self._directory = Directory(store)
        self._columns = AgentColumns(store, self._directory)

    async def info(self, section: str, *names: str) -> list[float]:
        lines = text(await self._store.submit("INFO", section)).splitlines()
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        return [float(found[name]) for name in names]

    async def cpu(self) -> tuple[float, float]:
        """Seconds of Valkey and of this process."""
        return sum(await self.info("cpu", "used_cpu_user", "used_cpu_sys")), time.process_time()

    async def build(self) -> None:
        builder = ColumnBuilder(self._store, self._directory)
        for shard in range(SHARDS):
            await builder.build(shard)

    async def claim(self, numbers: range, version: str = "0.1.0") -> float:
        """Valkey's µs for each claim."""
        valid_until = int(time.time() * 1000) + FAR_MS
        began, _ = await self.cpu()
        for start in range(numbers.start, numbers.stop, AT_ONCE):
            claims = [
                self._directory.claim(
                    f"agent-{n:07d}", "elsewhere#1", f"boot {version}", 1, f"s{n:015x}",
                    msgspec.json.encode(facts(n, version)), valid_until,
                )
                for n in range(start, min(start + AT_ONCE, numbers.stop))
            ]  # fmt: skip
            await asyncio.gather(*claims)
        return ((await self.cpu())[0] - began) * 1e6 / len(numbers)

    async def change(self, numbers: range, before: str, version: str) -> float:
        """One fact of each, told on the link that the agent has."""
        began, _ = await self.cpu()
        for start in range(numbers.start, numbers.stop, AT_ONCE):
            told = [
                FactsChange(
                    f"agent-{n:07d}", f"s{n:015x}", msgspec.json.encode(facts(n, before)),
                    msgspec.json.encode(facts(n, version)), int(1000 * time.time()),
                )
                for n in range(start, min(start + AT_ONCE, numbers.stop))
            ]  # fmt: skip
            parts = [told[at : at + IN_ONE_CALL] for at in range(0, len(told), IN_ONE_CALL)]
            await asyncio.gather(*map(self._directory.change_facts, parts))
        return ((await self.cpu())[0] - began) * 1e6 / len(numbers)

    async def label(self, numbers: range) -> float:
        began, _ = await self.cpu()
        for start in range(numbers.start, numbers.stop, AT_ONCE):
            names = [f"agent-{n:07d}" for n in range(start, min(start + AT_ONCE, numbers.stop))]
            await asyncio.gather(*[self._directory.label(name, {"env": "prod"}) for name in names])
        return ((await self.cpu())[0] - began) * 1e6 / len(numbers)

    async def pages(self, wanted: Selector, limit: int) -> tuple[int, int]:
        """How many agents were found before there were `limit`, and how many rows were read."""
        found = read = 0
        reading = (
            self._directory.index_pages(0, "", limit, "") if self._rows
            else self._columns.pages(0, "", limit, "", wanted)
        )  # fmt: skip
        async with aclosing(reading) as pages:
            async for names, _, _ in pages:
                read += len(names)
                for row in await self._directory.look_up_all(names):
                    found += wanted.matches(_decode(row.labels), _decode(row.facts)) is True
                if found >= limit:
                    break
        return found, read

    async def count(self, wanted: Selector) -> tuple[int, int]:
        if self._rows:
            return await self.pages(wanted, self._agents + 1)
        found = read = 0
        async for part in self._columns.counts("", wanted):
            rows = await self._directory.look_up_all(part.open)
            found += part.sure + sum(wanted.matches(_decode(row.labels), _decode(row.facts)) is True for row in rows)
            read += len(rows)
        return found, read

    async def measure(self, selector: str) -> list[Use]:
        wanted = parse(selector)
        calls: dict[str, Callable[[], Awaitable[tuple[int, int]]]] = {
            "count": lambda: self.count(wanted),
            f"page of {PAGE}": lambda: self.pages(wanted, PAGE),
        }
        uses = []
        for what, call in calls.items():
            least = [float("inf")] * 2
            found = read = 0
            for _ in range(1 if self._rows else REPEATED):
                began = await self.cpu()
                found, read = await call()
                ended = await self.cpu()
                least = [min(a, 1000 * (e - b)) for a, e, b in zip(least, ended, began, strict=True)]
            uses.append(Use(selector, what, found, read, *least))
        return uses


async def run(agents: int, rows: bool, out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with EmbeddedValkey(Path(name) / "valkey") as valkey:
            store = Pipeliner(valkey.url, batch_timeout=60.0)
            store.start()
            await store.wait_available(10)
            bench = Bench(store, agents, rows)
            await bench.build()
            (empty,) = await bench.info("memory", "used_memory")
            print_progress(f"writing {agents:,} agents")
            changes = {"claim of a new agent": await bench.claim(range(agents))}
            (full,) = await bench.info("memory", "used_memory")
            some = range(min(CLAIMS, agents))
            changes["claim with the same facts"] = min([await bench.claim(some) for _ in range(REPEATED)])
            versions = [f"0.1.{n}" for n in range(1, REPEATED + 1)]
            changes["claim with one other fact"] = min([await bench.claim(some, version) for version in versions])
            versions = [f"0.1.{REPEATED}", *[f"0.2.{n}" for n in range(REPEATED)]]
            changes["change of a fact"] = min([await bench.change(some, *pair) for pair in pairwise(versions)])
            changes["change of a label"] = min([await bench.label(some) for _ in range(REPEATED)])
            uses = [use for selector in SELECTORS for use in await bench.measure(selector)]
            await store.aclose()
    table(["what", "Valkey µs"], [[what, f"{us:.1f}"] for what, us in changes.items()])
    table(["bytes per agent", f"{(full - empty) / agents:.0f}"], [])
    table(
        ["selector", "what", "agents", "rows read", "Valkey ms", "this process ms"],
        [[u.selector, u.what, f"{u.agents:,}", f"{u.rows:,}", f"{u.valkey_ms:.1f}", f"{u.node_ms:.1f}"] for u in uses],
    )
    if out is not None:
        out.write_text(json.dumps([changes, (full - empty) / agents, [asdict(use) for use in uses]], indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, default=1_000_000, metavar="COUNT")
    parser.add_argument("--rows", action="store_true", help="read all rows, and no columns")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.agents, given.rows, given.out))


if __name__ == "__main__":
    main()
