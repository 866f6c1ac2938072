"""Thousands of commands with one deadline that no agent ends: how long after it the last ends, and what that costs.

`python -m bench.commands.deadlines --commands 12000 100000`: real nodes and a Valkey of their own on this machine.
The commands are written as a node writes them, each for an agent of its own that is linked elsewhere. How many have
ended is read from the nodes' metrics ten times a second; the rest of an end (its agent's row, the list of what is
due) is done when that list is empty. CPU is the scheduler's count from a second before the deadline on, the reading
of metrics included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from fairlead.fleet import schema
from fairlead.fleet.command_record import NewRecord
from fairlead.fleet.commands import Commands
from fairlead.fleet.deadline_queue import DeadlineQueue
from fairlead.fleet.directory import Directory
from fairlead.shards import SHARDS, of_agent
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, items
from fairlead.wire.ids import uuid7

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.simulated_fleet import FACTS

AT_ONCE = 500
"""Commands that are written at once: the backlog of the store has room for these calls of each priority."""
READY_MS = 5_000
MARGIN = 2.5
"""The deadline is so far ahead of the first write, and so many times what writing takes, measured with a first part."""
FAR_MS = 3_600_000
POLL = 0.1
"""Seconds."""
LIMIT = 300.0
TIMED_OUT = re.compile(r'^fairlead_commands_total\{state="timeout"\} (\S+)$', re.MULTILINE)
SHARES = {"first": 0.0, "p50": 0.5, "p99": 0.99, "last": 1.0}


@dataclass
class DeadlineFigures:
    """Seconds after the deadline, and CPU microseconds per command."""

    commands: int
    nodes: int
    ended: dict[str, float] = field(default_factory=dict)
    """The first reading at which so many had ended: see SHARES."""
    settled: float = 0.0
    nodes_us: float = 0.0
    valkey_us: float = 0.0


class BenchCommands:
    """Commands that were sent to their agents, all with the same deadline."""

    def __init__(self, store: Pipeliner) -> None:
        self._store = store
        self._directory, self._records, self._due = Directory(store), Commands(store, 1 << 24), DeadlineQueue(store)

    async def now(self) -> int:
        """Redis TIME in ms."""
        seconds, micros = items(await self._store.submit("TIME"))
        return integer(seconds) * 1000 + integer(micros) // 1000

    async def gather(self, count: int) -> int:
        """Write them; returns their deadline, by Redis TIME in ms."""
        began = await self.now()
        await self._write("warm", AT_ONCE, began + FAR_MS)
        now = await self.now()
        expires = now + READY_MS + int(count * MARGIN * (now - began) / AT_ONCE)
        await self._write("agent", count, expires)
        if await self.now() > expires - 2_000:
            raise SystemExit(f"{count} commands could not be written before their deadline: this machine is too busy")
        return expires

    async def _write(self, prefix: str, count: int, expires: int) -> None:
        now, facts = await self.now(), msgspec.json.encode(FACTS)
        far = expires + FAR_MS
        for start in range(0, count, AT_ONCE):
            agents = [f"{prefix}-{number}" for number in range(start, min(start + AT_ONCE, count))]
            # They are executed in this order, since they are of one priority.
            claims = [self._directory.claim(a, "elsewhere#1", "boot", 1, a, facts, far) for a in agents]
            await asyncio.gather(*claims)
            calls: list[Awaitable[Any]] = []
            for agent in agents:
                command = of_agent(uuid7(now, random.randbytes(10)), agent)
                record = NewRecord(command, agent, "work", b"{}", "interactive", now, expires, 3_600_000, expires)
                calls.append(self._records.accept(record, expires + 1_000, far))
                calls.append(self._records.fence(command, agent, far, "boot"))
            await asyncio.gather(*calls)

    async def left(self) -> int:
        """Entries in the list of what is due; those of the first part stay there."""
        shards = [self._store.submit("ZCARD", schema.deadlines_key(shard)) for shard in range(SHARDS)]
        return sum([integer(await count) for count in shards]) - AT_ONCE


def ended(gateways: list[BenchGateway]) -> int:
    counts = [TIMED_OUT.search(gateway.get("/metrics")) for gateway in gateways]
    return sum(int(float(count[1])) for count in counts if count is not None)


async def measure(count: int, nodes: int, folder: Path) -> DeadlineFigures:
    figures = DeadlineFigures(count, nodes)
    async with EmbeddedValkey(folder / f"valkey-{count}") as valkey:
        store = Pipeliner(valkey.url, batch_timeout=30.0)
        store.start()
        await store.wait_available(10)
        with ExitStack() as stack:
            gateways: list[BenchGateway] = []
            for number in range(nodes):
                gateways.append(BenchGateway(f"node-{number}", valkey.url, folder))
                stack.enter_context(running(gateways[-1]))
            crowd = BenchCommands(store)
            print_progress(f"{count:,} commands, {nodes} node{'s' if nodes > 1 else ''}")
            deadline = await crowd.gather(count)
            await asyncio.sleep((deadline - await crowd.now()) / 1000 - 1)
            before = sum(cpu_us(gateway.pid) for gateway in gateways), cpu_us(valkey.pid)
            async with asyncio.timeout(LIMIT):
                while "last" not in figures.ended or await crowd.left():
                    done = await asyncio.to_thread(ended, gateways)
                    at = (await crowd.now() - deadline) / 1000
                    for name, share in SHARES.items():
                        if done >= max(1, share * count):
                            figures.ended.setdefault(name, at)
                    await asyncio.sleep(POLL)
            figures.settled = (await crowd.now() - deadline) / 1000
            figures.nodes_us = (sum(cpu_us(gateway.pid) for gateway in gateways) - before[0]) / count
            figures.valkey_us = (cpu_us(valkey.pid) - before[1]) / count
        await store.aclose()
    return figures


async def run(counts: list[int], nodes: int, out: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = [await measure(count, nodes, Path(name)) for count in counts]
    table(
        ["commands", "nodes", *(f"{name} s" for name in SHARES), "settled s", "nodes µs", "Valkey µs"],
        [
            [f"{f.commands:,}", str(f.nodes), *(f"{f.ended[name]:.2f}" for name in SHARES), f"{f.settled:.2f}",
             f"{f.nodes_us:.0f}", f"{f.valkey_us:.0f}"]
            for f in figures
        ],
    )  # fmt: skip
    if out is not None:
        out.write_text(json.dumps([asdict(f) for f in figures], indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Thousands of commands with one deadline.")
    parser.add_argument("--commands", type=int, nargs="+", default=[12_000, 100_000], metavar="COUNT")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(given.commands, given.nodes, given.out))


if __name__ == "__main__":
    main()
