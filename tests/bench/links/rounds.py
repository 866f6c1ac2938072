"""One round of the bench: N clients connect, each sends `{"c": n}` and waits for `{"c": n, "ts": …}`, all then close.

All clients of a round are connected at once by its end. They are a program in C (`round_clients.c`), which checks every
answer: a server that mixes its clients up has no figure. CPU time is the server's, over connects, answers and closes,
until it has done what closes leave to do; latencies are what the client saw, whose own work on the second core is in
them.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path

from bench.peers.catalogue import POLLING
from bench.probe import BenchProcess, cpu_us, settled_cpu_us
from support.simulated_fleet import SOURCES

AT_ONCE = 100
"""Clients that are on their way at the same time."""
TIMEOUT = 60
"""Seconds for a round."""


@dataclass(frozen=True)
class Round:
    """Latencies in milliseconds."""

    cpu_us: float
    """Of the server, per client."""
    seconds: float
    connect_p50: float
    connect_p99: float
    answer_p50: float
    answer_p99: float
    load: float
    """The share of its core that the load generator used while the clients connected and asked."""


async def stamped(process: BenchProcess, program: Path, clients: int) -> Round:
    """One round at the server by `program`, which inherits the core of this process."""
    arguments = [str(number) for number in (process.port, clients, AT_ONCE, TIMEOUT)]
    cpu = cpu_us(process.pid)
    running = await asyncio.create_subprocess_exec(program, *arguments, *SOURCES, stdout=PIPE, stderr=PIPE)
    out, problem = await running.communicate()
    if running.returncode:
        raise SystemExit(f"a round of {clients} clients at {process.name} failed: {problem.decode()}")
    settled = cpu_us(process.pid) if process.name in POLLING else await asyncio.to_thread(settled_cpu_us, [process.pid])
    cpu = settled - cpu
    found = json.loads(out)
    connect_p50, connect_p99, answer_p50, answer_p99 = (
        found[key] * 1000 for key in ("connect_p50", "connect_p99", "answer_p50", "answer_p99")
    )
    load = found["own_cpu"] / found["seconds"]
    return Round(cpu / clients, found["seconds"], connect_p50, connect_p99, answer_p50, answer_p99, load)
