"""What the three kinds of `durability` cost: CPU of the node and of the primary for each command, and its round trip.

    python -m bench.commands.durability [--commands 2000]

One node, a primary with one replica and `appendfsync always`, one agent that answers at once. Each kind is measured
twice in turn, and the least is printed: the machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

from fairlead.agent import Agent

from support.gateway.platform_api import PLATFORM
from support.gateway_process import ServeProcess
from support.plain_http import plain_client
from support.valkey.replicas import Replicas

KINDS = ("local", "fsync", "replicated")
TOKEN = "development-agent-token"


async def measure(folder: Path, kind: str, commands: int, at_once: int) -> tuple[float, float, float]:
    """CPU µs of the node and of the primary for each command, and the median round trip in ms."""
    async with Replicas(folder / "redis", options=("--appendfsync", "always")) as redis:
        server = redis.primary
        node = ServeProcess(folder, "node-1", f"redis://:{server.password}@{server.address}", "--durability", kind)
        try:
            await asyncio.to_thread(node.wait_ready)
            agent = Agent(node.link, id="host", token=TOKEN)

            @agent.command("echo")
            async def echo() -> str:
                return "x"

            serving = asyncio.create_task(agent.serve())
            async with plain_client(base_url=node.api, headers=PLATFORM | {"accept": "application/x-ndjson"}) as http:
                body = {"agent": "host", "method": "echo"}
                while (await http.post("/v1/commands", json=body)).status_code != 200:
                    await asyncio.sleep(0.1)
                process = psutil.Process(node.pid)
                primary = psutil.Process(server.pid)
                before, before_server = sum(process.cpu_times()[:2]), sum(primary.cpu_times()[:2])
                trips: list[float] = []

                async def caller(count: int) -> None:
                    for _ in range(count):
                        began = time.perf_counter()
                        answer = await http.post("/v1/commands", json=body)
                        assert answer.status_code == 200, answer.text
                        trips.append(time.perf_counter() - began)

                await asyncio.gather(*(caller(commands // at_once) for _ in range(at_once)))
                used, used_server = sum(process.cpu_times()[:2]) - before, sum(primary.cpu_times()[:2]) - before_server
            agent.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(serving, 10)
            return used / len(trips) * 1e6, used_server / len(trips) * 1e6, statistics.median(trips) * 1e3
        finally:
            await asyncio.to_thread(node.stop)


async def run(commands: int, rounds: int) -> None:
    print("| durability | in flight | node, µs | primary, µs | median, ms |\n|---|---|---|---|---|")
    for at_once in (64, 1):
        found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                with tempfile.TemporaryDirectory() as folder:
                    count = commands // 4 if at_once == 1 else commands
                    found[kind].append(await measure(Path(folder), kind, count, at_once))
        for kind, measured in found.items():
            node, server, median = (min(values) for values in zip(*measured, strict=True))
            print(f"| {kind} | {at_once} | {node:.0f} | {server:.0f} | {median:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What durability costs")
    parser.add_argument("--commands", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    uvloop.run(run(given.commands, given.rounds))


if __name__ == "__main__":
    main()
