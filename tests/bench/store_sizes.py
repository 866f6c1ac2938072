"""How many bytes of Redis and of a node an agent, an open command, a finished command and an event take.

    python -m bench.store_sizes [--agents 2000] [--commands 1000]

One node and a Valkey with an append-only file, in their usual settings. Redis' bytes are the growth of its
`used_memory` without what its `maxmemory` does not count, the node's the growth of its proportional set size; both
divided by how many were added. The agents are in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from websockets import Subprotocol
from websockets.asyncio.client import connect

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.wire.messages import (
    SUBPROTOCOL_MSGPACK,
    Ack,
    Chunk,
    Cmd,
    End,
    Event,
    FromGateway,
    Message,
    Numbered,
    Rx,
)

from bench.nodes import BenchGateway, running
from bench.output import print_progress, table
from bench.probe import pss
from bench.record.runs import commit, machine
from support.gateway.platform_api import PLATFORM
from support.gateway.scripted_agent import ScriptedAgent
from support.plain_http import plain_client
from support.simulated_fleet import SimulatedFleet
from support.valkey.server import ValkeyServer

HOLDERS: Final = 10
"""Agents that have commands: one may have 1,000 that are open."""
COMMANDS: Final = ((100, 0), (4_096, 0), (65_536, 0), (100, 1_024), (100, 65_536))
"""Bytes of payload and of output."""
EVENTS: Final = (100, 1_000)
AT_ONCE: Final = 32
LINKS_AT_ONCE: Final = 8
"""A busy node has 16 links wait for their welcome at most, and refuses others."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of Redis and of the node."""

    redis: int
    node: int

    def each(self, before: Sizes, count: int) -> tuple[int, int]:
        return (self.redis - before.redis) // count, (self.node - before.node) // count


class Measured:
    """The two processes that are measured."""

    def __init__(self, valkey: ValkeyServer, node: BenchGateway) -> None:
        self.valkey = valkey
        self.node = node

    async def sizes(self) -> Sizes:
        """Once nothing is under way any more: the least of a second."""
        found = []
        for _ in range(5):
            await asyncio.sleep(0.2)
            info = await self.valkey.info("memory")
            found.append(Sizes(info["used_memory"] - info["mem_not_counted_for_evict"], pss(self.node.pid)))
        return Sizes(min(one.redis for one in found), min(one.node for one in found))


class Holder(ScriptedAgent):
    """An agent that counts what it has sent, so that it knows when all of it is stored."""

    numbered = 0
    stored = 0

    async def send(self, *messages: Message) -> None:
        await super().send(*messages)
        self.numbered += sum(isinstance(message, Numbered) for message in messages)

    async def receive(self) -> FromGateway:
        message = await super().receive()
        if isinstance(message, Rx):
            self.stored = message.s
        return message

    async def until_stored(self) -> None:
        while self.stored < self.numbered:
            await self.receive()


async def dial(node: BenchGateway, name: str) -> Holder:
    socket = await connect(
        f"ws://127.0.0.1:{node.link}/v1/link", subprotocols=[Subprotocol(SUBPROTOCOL_MSGPACK)],
        additional_headers={"Authorization": f"Bearer {DEVELOPMENT_AGENT_TOKEN}"}, compression=None, ping_interval=None,
        proxy=None, max_size=4 << 20,
    )  # fmt: skip
    agent = Holder(socket, SUBPROTOCOL_MSGPACK, name)
    await agent.greet()
    return agent


async def open_commands(node: BenchGateway, agents: list[Holder], payload: int, count: int) -> list[str]:
    """Post `count` commands and have them acknowledged. Returns the ids of each agent's in turn."""
    body = {"method": "work", "payload": {"data": "x" * (payload - 11)}, "deadline": 3_600}
    left = iter(range(count))

    async def post() -> None:
        for n in left:
            answer = await http.post("/v1/commands", json={**body, "agent": agents[n % len(agents)].agent})
            assert answer.status_code == 202, answer.text

    async def acknowledge(agent: Holder, share: int) -> list[str]:
        ids = []
        for _ in range(share):
            ids.append((await agent.expect(Cmd)).id)
            await agent.send(Ack(id=ids[-1]))
        return ids

    shares = [len(range(n, count, len(agents))) for n in range(len(agents))]
    async with plain_client(base_url=f"http://127.0.0.1:{node.api}", headers=PLATFORM, timeout=60) as http:
        taking = [asyncio.create_task(acknowledge(*pair)) for pair in zip(agents, shares, strict=True)]
        await asyncio.gather(*(post() for _ in range(AT_ONCE)))
        return [id for ids in await asyncio.gather(*taking) for id in ids]


async def finish(agents: list[Holder], ids: list[str], output: int) -> None:
    """End all these commands with so many bytes of output, and wait until the node has stored them."""
    share = len(ids) // len(agents)
    for number, agent in enumerate(agents):
        for command in ids[number * share : (number + 1) * share]:
            if output:
                await agent.send(Chunk(id=command, n=0, kind="stdout", payload=b"x" * output))
            await agent.send(End(id=command, total=int(output > 0), payload=b'{"exit_code":0}'))
        await agent.until_stored()


async def measure(agents: int, commands: int, folder: Path) -> None:
    valkey = ValkeyServer(folder / "valkey")
    await valkey.start()
    try:
        node = BenchGateway("node-1", f"redis://:{valkey.password}@{valkey.address}", folder)
        with running(node):
            await tables(Measured(valkey, node), agents, commands)
    finally:
        valkey.stop()


async def tables(measured: Measured, agents: int, commands: int) -> None:
    node = measured.node
    async with TimerWheel(silence=3_600) as timer_wheel:
        fleet = SimulatedFleet(f"ws://127.0.0.1:{node.link}/v1/link", DEVELOPMENT_AGENT_TOKEN, timer_wheel)
        await fleet.join(agents // 10, LINKS_AT_ONCE)  # what a node needs once
        print_progress("agents")
        before = await measured.sizes()
        await fleet.join(agents, LINKS_AT_ONCE)
        rows = [["an agent with a link, 6 facts", *each(await measured.sizes(), before, agents)]]
        holders = [await dial(node, f"holder-{n}") for n in range(HOLDERS)]
        print_progress("warm")
        await finish(holders, await open_commands(node, holders, 100, HOLDERS * 20), 0)
        for payload, output in COMMANDS:
            rows += await of_commands(measured, holders, payload, output, commands)
        for size in EVENTS:
            rows.append(await of_events(measured, holders, size, commands // HOLDERS))
        await fleet.leave()
    table(["what", "Redis, bytes", "node, bytes"], rows)
    about = machine()
    print(f"\n{agents:,} agents, {commands:,} commands")
    print(f"{about['cores']} cores of {about['cpu']}, {about['gib']} GiB, commit {commit()}")


async def of_commands(
    measured: Measured, holders: list[Holder], payload: int, output: int, count: int
) -> list[list[str]]:
    """The rows of commands while they are open, and once they are finished."""
    print_progress(f"commands with {payload} bytes of payload and {output} of output")
    before, rows = await measured.sizes(), []
    ids = await open_commands(measured.node, holders, payload, count)
    if output == 0:
        rows.append([f"an open command, payload of {payload:,}", *each(await measured.sizes(), before, count)])
    await finish(holders, ids, output)
    what = f"a finished command, payload of {payload:,}, output of {output:,}"
    return [*rows, [what, *each(await measured.sizes(), before, count)]]


async def of_events(measured: Measured, holders: list[Holder], size: int, count: int) -> list[str]:
    """The row of events, of which each agent sends `count`."""
    print_progress(f"events of {size} bytes")
    before = await measured.sizes()
    data = json.dumps("x" * (size - 2)).encode()
    for holder in holders:
        await holder.send(*(Event(id=f"event-{size}-{n}", type="disk.full", payload=data) for n in range(count)))
        await holder.until_stored()
    return [f"an event of {size:,}", *each(await measured.sizes(), before, count * len(holders))]


def each(now: Sizes, before: Sizes, count: int) -> tuple[str, str]:
    redis, node = now.each(before, count)
    return f"{redis:,}", f"{node:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes of Redis and of a node for each agent, command and event.")
    parser.add_argument("--agents", type=int, default=2_000)
    parser.add_argument("--commands", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        uvloop.run(measure(given.agents, given.commands, Path(folder)))


if __name__ == "__main__":
    main()
