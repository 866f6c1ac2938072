"""A script of 64 KiB for thousands of agents: what goes through Redis, and what it costs the nodes.

    python -m bench.commands.contents --agents 10000 --nodes 2

Real nodes and a Valkey of their own on this machine, and the agents of `fairlead swarm`, which hold their links to all
nodes but the first, where the runs are posted. Three runs in each turn: `script` with a content, which every agent asks
for, reads and compares with its digest; the same method without a content; and the octets as the payload of each
command, for as many agents as `--paid` says, which is the way without contents. Bytes are those that Valkey has
received and sent; CPU is the scheduler's count from the post until the run has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from fairlead.client import Client
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply import text

from bench.commands.runs import HEADERS, LIMIT, POLL, agents
from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import cpu_us
from support.plain_http import plain_client

SIZE = 64 << 10
AT_ONCE = 50
"""Commands in flight that carry the octets themselves."""


@dataclass(frozen=True)
class ContentFigures:
    """Seconds, and for each target bytes through Redis and CPU microseconds."""

    what: str
    targets: int
    seconds: float
    received: float
    sent: float
    nodes_us: float
    valkey_us: float


class ContentScene:
    def __init__(self, http: httpx2.AsyncClient, store: Pipeliner, nodes: list[int], valkey: int) -> None:
        self._http, self._store, self._nodes, self._valkey = http, store, nodes, valkey

    async def _traffic(self) -> tuple[int, int]:
        lines = text(await self._store.submit("INFO", "stats")).splitlines()
        found = dict(line.split(":", 1) for line in lines if ":" in line)
        return int(found["total_net_input_bytes"]), int(found["total_net_output_bytes"])

    async def measure(self, what: str, targets: int, work: Any) -> ContentFigures:
        traffic, began = await self._traffic(), time.monotonic()
        before = sum(map(cpu_us, self._nodes)), cpu_us(self._valkey)
        await work
        took = time.monotonic() - began
        after, now = (sum(map(cpu_us, self._nodes)), cpu_us(self._valkey)), await self._traffic()
        received, sent = (b - a for a, b in zip(traffic, now, strict=True))
        nodes_us, valkey_us = (b - a for a, b in zip(before, after, strict=True))
        found = ContentFigures(
            what, targets, took, received / targets, sent / targets, nodes_us / targets, valkey_us / targets
        )
        print_progress(str(found))
        return found

    async def run(self, body: dict[str, Any], targets: int) -> None:
        """Post a run on all simulated agents and wait for its end."""
        answer = await self._http.post("/v1/runs", json={"selector": "swarm", "concurrency": 1_000, **body})
        assert answer.status_code == 202, answer.text
        path = f"/v1/runs/{answer.json()['id']}"
        async with asyncio.timeout(LIMIT):
            while not (state := (await self._http.get(path)).json())["ended"]:
                await asyncio.sleep(POLL)
        assert state["counts"] == {"ok": targets}, state

    async def pay(self, names: list[str], data: bytes) -> None:
        """Commands with the octets as their payload."""
        payload, turns = base64.b64encode(data).decode(), asyncio.Semaphore(AT_ONCE)

        async def post(name: str) -> None:
            body = {"agent": name, "method": "anything", "payload": {"data": payload}}
            async with turns:
                answer = await self._http.post(
                    "/v1/commands", json=body, headers={"accept": "application/x-ndjson"}, timeout=LIMIT
                )
            assert answer.status_code == 200, answer.text
            assert json.loads(answer.text.splitlines()[-1])["end"]["state"] == "ok", answer.text

        await asyncio.gather(*map(post, names))


async def measure(given: argparse.Namespace, folder: Path) -> list[ContentFigures]:
    figures = []
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey(folder / "valkey"))
        nodes = [BenchGateway(f"node-{n + 1}", valkey.url, folder) for n in range(given.nodes)]
        stack.enter_context(running(*nodes))
        holders = nodes[1:] or nodes
        await stack.enter_async_context(agents(given.agents, holders, folder))
        api = f"http://127.0.0.1:{nodes[0].api}"
        http = await stack.enter_async_context(plain_client(base_url=api, headers=HEADERS, timeout=60))
        client = await stack.enter_async_context(Client(api, DEVELOPMENT_PLATFORM_TOKEN))
        store = Pipeliner(valkey.url)
        store.start()
        stack.push_async_callback(store.aclose)
        await store.wait_available(10)
        scene = ContentScene(http, store, [node.pid for node in nodes], valkey.pid)
        names = [f"bench0-{n}" for n in range(min(given.paid, given.agents // len(holders)))]
        for turn in range(given.turns):
            data = random.Random(turn).randbytes(SIZE)  # another content each time, which no node has in its cache
            plain = {"method": "anything"}
            figures.append(await scene.measure("no content", given.agents, scene.run(plain, given.agents)))
            digest = await client.store_content(data)
            script = {"method": "script", "payload": {"digest": digest, "size": SIZE}, "content": digest}
            figures.append(await scene.measure("content", given.agents, scene.run(script, given.agents)))
            figures.append(await scene.measure("payload", len(names), scene.pay(names, data)))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="A script of 64 KiB for thousands of agents.")
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--paid", type=int, default=500, metavar="AGENTS", help="those that get it as a payload")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        figures = uvloop.run(measure(given, Path(name)))
    table(
        ["64 KiB as", "targets", "s", "Valkey received, bytes", "Valkey sent, bytes", "nodes µs", "Valkey µs"],
        [
            [one.what, f"{one.targets:,}", f"{one.seconds:.2f}", f"{one.received:,.0f}", f"{one.sent:,.0f}",
             f"{one.nodes_us:.0f}", f"{one.valkey_us:.0f}"]
            for one in figures
        ],
    )  # fmt: skip
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(one) for one in figures], indent=2))


if __name__ == "__main__":
    main()
