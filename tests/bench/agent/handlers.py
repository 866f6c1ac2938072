"""Ten CPU-bound and ten blocking handlers on one agent, beside the same work in plain Python: one after the other, on
asyncio, in threads and in processes. Prints a table and writes a JSON file.

`python -m bench.agent.handlers --rounds 5`: an agent of the SDK in a process of its own and a gateway in this one,
which sends ten commands at once and waits for their ends. Every model is a process of its own, and all take turns in
each round. Beside the time, for the agent: the gaps between its messages meanwhile, with heartbeats every second. The
first round of the agent, in which it starts its fork server, is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairlead.agent import Agent
from fairlead.wire.messages import End

from bench.output import print_progress
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import Link

TASKS = 10
HEARTBEAT_MS = 1000
TIMEOUT = 60.0
"""Seconds for one model's ten tasks."""
MODELS = ("sequential", "asyncio", "threads", "processes")
WORKS = {"fib": ("process", "thread"), "sleep": ("thread", "loop")}
"""The two kinds of work, and where the agent runs each."""


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def fib_in_thread(n: int) -> int:
    return fib(n)


def sleep(n: float) -> None:
    time.sleep(n)


async def sleep_on_loop(n: float) -> None:
    await asyncio.sleep(n)


# -- plain Python ----------------------------------------------------------------------------------


def plain(model: str, work: str, n: int | float) -> float:
    """Seconds for ten tasks. Pools are made before and are as large as Python makes them."""
    function: Callable[[Any], object] = fib if work == "fib" else sleep
    if model == "sequential":
        began = time.perf_counter()
        for _ in range(TASKS):
            function(n)
    elif model == "asyncio":
        began = time.perf_counter()
        asyncio.run(_on_asyncio(work, n))
    else:
        pool: Executor = ThreadPoolExecutor(TASKS) if model == "threads" else ProcessPoolExecutor(_cores())
        with pool:
            list(pool.map(fib, [1] * TASKS))
            began = time.perf_counter()
            list(pool.map(function, [n] * TASKS))
    return time.perf_counter() - began


async def _on_asyncio(work: str, n: float) -> None:
    async def one() -> None:
        if work == "fib":
            fib(int(n))
        else:
            await asyncio.sleep(n)

    await asyncio.gather(*(one() for _ in range(TASKS)))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# -- the agent -------------------------------------------------------------------------------------


def run_agent(url: str) -> None:
    agent = Agent(url, "bench-1", "t")
    agent.command("fib-process", run="process")(fib)
    agent.command("fib-thread")(fib_in_thread)
    agent.command("sleep-thread")(sleep)
    agent.command("sleep-loop")(sleep_on_loop)
    agent.run()


async def ten_commands(link: Link, method: str, n: float, number: int) -> tuple[float, list[float]]:
    """Seconds until the last end, and the gaps between what the agent has sent meanwhile, in seconds."""
    commands = [f"{method}-{number}-{task}" for task in range(TASKS)]
    first = len(link.heard)
    began = time.perf_counter()
    for command in commands:
        await link.command(command, method, {"n": n}, deadline=int(TIMEOUT * 1000))
    async with asyncio.timeout(TIMEOUT):
        for command in commands:
            while not link.of(End, command):
                await asyncio.sleep(0.002)
    took = time.perf_counter() - began
    assert all(end.state == "ok" for end in link.of(End)), link.of(End)
    times = [at for at, _ in link.heard[first:]]
    return took, [later - earlier for earlier, later in pairwise(times)]


async def measure(rounds: int, n: int, seconds: float) -> dict[str, object]:
    gateway = Gateway()
    await gateway.start()
    arguments = [sys.executable, "-I", "-m", "bench.agent.handlers"]
    agent = subprocess.Popen([*arguments, "--agent", gateway.url], stdin=subprocess.DEVNULL)
    times: dict[str, dict[str, list[float]]] = {work: {} for work in WORKS}
    gaps: dict[str, list[float]] = {}
    try:
        link = await gateway.linked(hb=HEARTBEAT_MS)
        for number in range(rounds + 1):
            for work, size in (("fib", n), ("sleep", seconds)):
                for model in MODELS if number else ():
                    done = await asyncio.to_thread(
                        subprocess.run,
                        [*arguments, "--model", model, "--work", work, "--size", str(size)],
                        capture_output=True, check=True, timeout=TIMEOUT,
                    )  # fmt: skip
                    times[work].setdefault(model, []).append(float(done.stdout))
                for where in WORKS[work]:
                    took, between = await ten_commands(link, f"{work}-{where}", size, number)
                    name = f"agent, {where}" + ("" if number else ", first")
                    times[work].setdefault(name, []).append(took)
                    gaps.setdefault(f"{work}, {where}", []).extend(between)
    finally:
        agent.terminate()
        await asyncio.to_thread(agent.wait, TIMEOUT)
        await gateway.stop()
    return {
        "cores": _cores(),
        "tasks": TASKS,
        "seconds": {
            work: {model: {"min": min(t), "median": statistics.median(t)} for model, t in models.items()}
            for work, models in times.items()
        },
        "message_gaps_ms": {where: _milliseconds(between) for where, between in gaps.items()},
    }


def _milliseconds(gaps: list[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered) * 1000, 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 1),
    }


def show(figures: dict[str, object]) -> None:
    seconds: dict[str, dict[str, dict[str, float]]] = figures["seconds"]  # type: ignore[assignment]  # made above
    for work, models in seconds.items():
        for model, took in models.items():
            print_progress(f"{work:6} {model:22} {took['min']:7.3f} s, median {took['median']:7.3f} s")
        if work == "fib":
            ideal = models["sequential"]["min"] / min(_cores(), TASKS)
            print_progress(f"{work:6} {'ideal of the cores':22} {ideal:7.3f} s")
    gaps: dict[str, dict[str, float]] = figures["message_gaps_ms"]  # type: ignore[assignment]  # made above
    for where, gap in gaps.items():
        print_progress(f"gaps between messages, {where:14} p50 {gap['p50']:6.1f} ms, p99 {gap['p99']:6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fib", type=int, default=30, help="the CPU-bound work: fib of this number, recursively")
    parser.add_argument("--sleep", type=float, default=1.0, help="the blocking work, in seconds")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--agent", help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.agent:
        run_agent(given.agent)
    elif given.model:
        print(plain(given.model, given.work, int(given.size) if given.work == "fib" else given.size))
    else:
        figures = asyncio.run(measure(given.rounds, given.fib, given.sleep))
        show(figures)
        if given.out:
            given.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
