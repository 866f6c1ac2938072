"""Market data pushed (open, high, low, close, volume) by our carrier, Autobahn, Socket.IO and ws. Writes a JSON file.

`python -m bench.market.run`: each server pushes the quotes of 1 to 100 stocks to 1 to 100 clients, as text and as
binary messages, in turn: packets per CPU second of the server, and the latency from the time of the tick to the
client. Then all servers push at a steady rate while one client of each does not read: memory over minutes. Bounded in
count and time; traffic stays on the loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fairlead.carrier.timer_wheel import TimerWheel

from bench.market.readers import QuoteReader, reader, stalled
from bench.output import medians, print_progress, table
from bench.peers.installation import Installation
from bench.probe import BenchProcess, cpu_us, pin, pss
from support.free_ports import free_port

PEERS = Path(__file__).resolve().parent.parent / "peers"
LABELS = {
    "fairlead": "Fairlead's carrier", "epoll": "Fairlead's carrier, epoll", "autobahn": "autobahn, asyncio",
    "socketio": "python-socketio on uvicorn", "ws": "ws on Node.js", "socket.io": "Socket.IO on Node.js",
}  # fmt: skip
OWN = ("fairlead", "epoll")
PACE = 20_000
"""Packets per second that are asked for. A server that cannot send as many falls behind, which its latency shows."""
LEAST_TICKS = 8
"""Of one turn of one cell: its first tick is slower than the others."""
TIMEOUT = 60.0


@dataclass(frozen=True)
class MarketScale:
    stocks: tuple[int, ...] = (1, 2, 10, 100)
    clients: tuple[int, ...] = (1, 2, 3, 100)
    turns: int = 3
    seconds: float = 0.5
    """Of one turn of one cell."""
    minutes: float = 3.0
    """That the servers are watched while one client does not read."""
    sample: float = 10.0
    fetch: bool = True


SCALES = {
    "full": MarketScale(),
    "quick": MarketScale(turns=1, seconds=0.3, minutes=1.0),
    "smoke": MarketScale((1, 2), (1, 2), 1, 0.05, 0.02, 0.5, fetch=False),
}


def commands(fetch: bool) -> dict[str, list[str]]:
    """How each server is started, without its port."""
    found = Installation(fetch)
    own = {name: [sys.executable, "-P", str(PEERS / "market.py"), name] for name in OWN}
    quiet = [str(found.python), "-P", "-W", "ignore", str(PEERS / "market.py")]
    python = {} if found.python is None else {name: [*quiet, name] for name in ("autobahn", "socketio")}
    node = {} if found.modules is None else {
        name: ["node", str(PEERS / "node" / "market.js"), name] for name in ("ws", "socket.io")
    }  # fmt: skip
    return own | python | node


@asynccontextmanager
async def servers(folder: Path, fetch: bool) -> AsyncIterator[dict[str, BenchProcess]]:
    found = Installation(fetch)
    processes: dict[str, BenchProcess] = {}
    try:
        for name, command in commands(fetch).items():
            port = free_port()
            env = {"NODE_PATH": str(found.modules)}
            processes[name] = BenchProcess(name, [*command, str(port)], folder, port, env)
            await asyncio.to_thread(processes[name].wait_listening)
        yield processes
    finally:
        for process in processes.values():
            process.stop()


async def cell(
    process: BenchProcess, readers: list[QuoteReader], stocks: int, binary: bool, seconds: float
) -> dict[str, float]:
    """One turn: all quotes of some ticks to all readers."""
    interval = max(0.002, stocks * len(readers) / PACE)
    ticks = max(LEAST_TICKS, round(seconds / interval))
    for one in readers:
        one.expect(ticks * stocks)
    packets = ticks * stocks * len(readers)
    cpu, started, own = cpu_us(process.pid), time.perf_counter(), time.process_time()
    readers[0].ask({"stocks": stocks, "ticks": ticks, "interval": interval, "binary": binary})
    async with asyncio.timeout(TIMEOUT):
        for one in readers:
            await one.done.wait()
    took = time.perf_counter() - started
    latencies = sorted(latency for one in readers for latency in one.latencies())
    return {
        "packets": packets, "us": (cpu_us(process.pid) - cpu) / packets,
        "p50_ms": latencies[packets // 2] * 1000, "p99_ms": latencies[packets * 99 // 100] * 1000,
        "load": (time.process_time() - own) / took,
    }  # fmt: skip


async def cells(folder: Path, scale: MarketScale) -> list[dict[str, object]]:
    """Each cell of the table: the servers take turns within it."""
    found: list[dict[str, object]] = []
    async with servers(folder, scale.fetch) as processes, TimerWheel(silence=3600) as timer_wheel:
        for clients in scale.clients:
            readers = {
                name: [await reader(process.port, name, timer_wheel) for _ in range(clients)]
                for name, process in processes.items()
            }
            for stocks in scale.stocks:
                print_progress(f"market data: {stocks} stocks, {clients} clients")
                for binary in (False, True):
                    taken: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
                    for _ in range(scale.turns):
                        for name, process in processes.items():
                            taken[name].append(await cell(process, readers[name], stocks, binary, scale.seconds))
                    figures = {name: medians(turns) for name, turns in taken.items()}
                    found.append({"stocks": stocks, "clients": clients, "binary": binary, "servers": figures})
            for one in (one for group in readers.values() for one in group):
                one.close()
    return found


async def slow(folder: Path, scale: MarketScale) -> dict[str, list[float]]:
    """MiB of each server, from before the push on: three clients that read, and one that does not."""
    stocks, interval = 100, 0.1
    ticks = round(scale.minutes * 60 / interval)
    memory: dict[str, list[float]] = {}
    async with servers(folder, scale.fetch) as processes, TimerWheel(silence=3600) as timer_wheel:
        stopped, readers = [], []
        for name, process in processes.items():
            readers += (group := [await reader(process.port, name, timer_wheel) for _ in range(3)])
            stopped.append(await asyncio.to_thread(stalled, process.port, name))
            memory[name] = [pss(process.pid) / 2**20]
            group[0].ask({"stocks": stocks, "ticks": ticks, "interval": interval, "binary": False})
        received = dict.fromkeys(readers, 0)
        print_progress(f"market data beside a client that does not read, {scale.minutes:g} min")
        for _ in range(max(1, round(scale.minutes * 60 / scale.sample))):
            await asyncio.sleep(scale.sample)
            for name, process in processes.items():
                memory[name].append(pss(process.pid) / 2**20)
            for one in readers:
                received[one] += len(one.arrived)
                one.expect(-1)
        for client in stopped:
            client.close()
        if scale.fetch and not all(received.values()):
            raise SystemExit(f"clients that read beside one that does not got {received.values()} quotes")
    return memory


def show(figures: dict[str, object]) -> None:
    rows = []
    for one in figures["cells"]:  # type: ignore[attr-defined]  # made below
        kind = "binary" if one["binary"] else "text"
        row = [str(one["stocks"]), str(one["clients"]), kind]
        rows.append(row + [f"{1e6 / server['us']:,.0f}" if server["us"] else "–" for server in one["servers"].values()])
    names = list(figures["memory"])  # type: ignore[call-overload]  # made below
    table(["stocks", "clients", "", *(LABELS[name] for name in names)], rows)


async def run(scale: MarketScale, out: Path | None) -> None:
    pin(0, 1)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        figures: dict[str, object] = {"cells": await cells(folder, scale), "memory": await slow(folder, scale)}
    figures["sample_s"], figures["versions"] = scale.sample, Installation(scale.fetch).versions()
    show(figures)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Market data pushed by our carrier and its peers.")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    uvloop.run(run(SCALES[given.scale], given.out))


if __name__ == "__main__":
    main()
