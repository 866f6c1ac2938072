"""What a fleet that is held costs: memory of its processes and of the kernel, and CPU time. For bench.hold."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.fleet.schema import index_key
from fairlead.shards import SHARDS
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import integer, text

from bench.probe import cpu_us, memory


@dataclass(frozen=True)
class Usage:
    """Bytes, and CPU microseconds so far."""

    nodes_pss: int
    nodes_uss: int
    nodes_rss: int
    valkey_pss: int
    valkey_used: int
    slab: int
    sockets: int
    """Pages of TCP buffers."""
    available: int
    nodes_us: float
    valkey_us: float
    at: float


@dataclass(frozen=True)
class Growth:
    """What is used while agents join, as far as it can be read without holding anybody up."""

    agents: int
    """In Valkey's index."""
    nodes_rss: int
    valkey_used: int
    slab: int
    nodes_us: float
    valkey_us: float


@dataclass(frozen=True)
class HoldScene:
    """The processes that are watched."""

    nodes: list[int]
    valkey: int
    store: Pipeliner

    async def usage(self) -> Usage:
        sizes = [memory(pid) for pid in self.nodes]
        kernel = meminfo()
        return Usage(
            sum(one.pss for one in sizes), sum(one.uss for one in sizes), sum(one.rss for one in sizes),
            memory(self.valkey).pss, await self._valkey_used(), kernel["Slab"], sockets(), kernel["MemAvailable"],
            sum(map(cpu_us, self.nodes)), cpu_us(self.valkey), time.monotonic(),
        )  # fmt: skip

    async def growth(self) -> Growth:
        """A sum over page tables, as `usage` makes one, would take a process off its core for milliseconds."""
        counts = await asyncio.gather(*(self.store.submit("ZCARD", index_key(shard)) for shard in range(SHARDS)))
        return Growth(
            sum(map(integer, counts)), sum(map(resident, self.nodes)), await self._valkey_used(), meminfo()["Slab"],
            sum(map(cpu_us, self.nodes)), cpu_us(self.valkey),
        )  # fmt: skip

    async def watch(self, growth: list[Growth], every: float) -> None:
        """Append what is used, every so many seconds, until it is cancelled."""
        while True:
            growth.append(await self.growth())
            await asyncio.sleep(every)

    async def _valkey_used(self) -> int:
        return int(text(await self.store.submit("INFO", "memory")).partition("used_memory:")[2].split()[0])

    async def known(self, prefix: str) -> list[int]:
        """How many agents with this beginning of their ids each shard of Valkey's index has."""
        least, most = f"[{prefix}-", f"({prefix}."  # '.' follows '-'
        keys = [index_key(shard) for shard in range(SHARDS)]
        return [integer(await self.store.submit("ZLEXCOUNT", key, least, most)) for key in keys]


def resident(pid: int) -> int:
    """The resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}


def sockets() -> int:
    """Bytes of buffers of all TCP sockets."""
    line = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:"))
    return int(line.split()[line.split().index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE")


def memory_rows(figures: dict[str, Any]) -> list[list[str]]:
    """Whose memory the agents of a result of `bench.hold` take: a name, MiB, and bytes for each agent."""
    before, held, agents, swarm = figures["before"], figures["held"], figures["agents"], figures["swarm_bytes"]

    def row(name: str, size: float) -> list[str]:
        return [name, f"{size / 2**20:,.0f}", f"{size / agents:,.0f}"]

    def grown(name: str, key: str) -> list[str]:
        return row(name, held[key] - before[key])

    return [
        grown("nodes, PSS", "nodes_pss"),
        grown("nodes, USS", "nodes_uss"),
        grown("nodes, RSS", "nodes_rss"),
        grown("Valkey, used_memory", "valkey_used"),
        grown("Valkey, PSS", "valkey_pss"),
        row("swarm, USS", swarm),
        grown("kernel, slab (both ends of each connection)", "slab"),
        grown("kernel, TCP buffers", "sockets"),
        row("MemAvailable, less by", before["available"] - held["available"]),
    ]
