"""Two gateway nodes that a Prometheus scrapes: idle, under commands and storms, with a frozen Redis, with a drain.

Played by test_dashboards.py and, to be read, by dashboard_answers.py. Agents are those of `fairlead swarm`, half of
them at each node; callers ask each node for agents of the other, so that doorbells ring. Nothing is measured here:
Prometheus remembers, and the tests ask it about the two windows of time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_JSON

from support.carrier.raw_client import RawClient
from support.gateway.webhook_receiver import Received, receiving
from support.gateway_process import ServeProcess
from support.observability.prometheus_server import RATE, Prometheus, Target, scraping
from support.otlp_collector import collecting
from support.plain_http import plain_client

TIMEOUT = 30.0
AGENTS = 30
"""Simulated ones at each node; the storm adds as many."""
LINKS = 2 * (AGENTS + 1)
"""With a built-in agent at each node: simulated ones do not tell their round trips."""
TALKING = 5
"""Agents that send events under load."""
SILENT = 1
"""Agents that open a link under load and send no hello."""
IDLE, BUSY, FAULTS = 9.0, 12.0, 21.0
"""Seconds. Idle is longer than a rate looks back. The node that drains tells five agents a second to move. They know no
other node, so it closes their links 10 s later, and ends some 17 s after the signal."""
FREEZE = 2.5
"""Seconds: Redis counts as lost after one."""
CALLERS = 4


class WatchedNode(ServeProcess):
    """One `fairlead serve`, ready."""

    def __init__(self, folder: Path, name: str, redis: str, *flags: str) -> None:
        super().__init__(folder, name, redis, "--heartbeat=1", "--drain-timeout=5", *flags)
        self.wait_ready()

    def target(self, gateway: str = "edge", namespace: str = "fleet") -> Target:
        """With the labels that the chart's PodMonitor gives."""
        return Target("gateway", self.admin, {"namespace": namespace, "gateway": gateway, "pod": self.name})


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def agent(node: WatchedNode) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "agent", "run", "--url", node.link, "--id", f"agent-of-{node.name}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**environment, "FAIRLEAD_AGENT_TOKEN": "development-agent-token"},
    )  # fmt: skip
    with ended(process):
        yield


@contextmanager
def swarm(node: WatchedNode, prefix: str, count: int, *flags: str) -> Iterator[None]:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "fairlead", "swarm", "--url", node.link, "--agents", str(count), "--rate", "100",
            "--id-prefix", prefix, "--token", "development-agent-token", "--processes", "1", *flags,
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with ended(process):
        yield


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    prometheus: Prometheus
    idle: tuple[float, float]
    """Nothing but heartbeats, from the first second on of which a rate sees nothing else."""
    busy: tuple[float, float]
    """All that came then."""


@asynccontextmanager
async def watched_fleet(folder: Path) -> AsyncIterator[WatchedFleet]:
    """The fleet is gone when this gives way; Prometheus still answers."""
    async with AsyncExitStack() as stack:
        collector = stack.enter_context(collecting())
        valkey = EmbeddedValkey(folder / "valkey")
        await valkey.start()
        try:
            flags = ["--trace-endpoint", collector.url, "--trace-ratio", "0.2"]
            flags += ["--drain-rate=5", "--drain-timeout=40"]
            flags += [f"--audit-log={folder / 'audit'}", "--audit-endpoint", collector.url]
            receiver = await stack.enter_async_context(receiving())
            receiver.answer = partial(_taken, [])
            flags += [f"--event-sinks={_sinks(folder, receiver.url)}"]
            one, two = nodes = [WatchedNode(folder, name, valkey.url, *flags) for name in ("node-1", "node-2")]
            for node in nodes:
                stack.enter_context(ended(node.process))
            prometheus = stack.enter_context(scraping(folder, [node.target() for node in nodes]))
            for node in nodes:
                stack.enter_context(swarm(node, node.name, AGENTS))
                stack.enter_context(agent(node))
            await asyncio.to_thread(prometheus.wait_for, f"sum(fairlead_agents) == {LINKS}", TIMEOUT)
            # What the welcomes were is out of sight when a rate looks back no further than this.
            began = time.time() + RATE + 2
            await asyncio.sleep(RATE + 2 + IDLE)
            idle = (began, time.time())

            talk = ("--profile", "chatty", "--event-every", "0.3")
            with (
                swarm(one, "storm", AGENTS, "--profile", "storm", "--storm-every", "3"),
                swarm(one, "talk", TALKING, *talk),
            ):
                await _calls(one, two)
            os.kill(valkey.pid, signal.SIGSTOP)
            await asyncio.sleep(FREEZE)
            os.kill(valkey.pid, signal.SIGCONT)
            await asyncio.sleep(1)
            two.process.terminate()  # drains
            await asyncio.sleep(FAULTS)
            yield WatchedFleet(prometheus, idle, (idle[1], time.time()))
        finally:
            if valkey.running:
                os.kill(valkey.pid, signal.SIGCONT)
            await valkey.stop()


def _sinks(folder: Path, url: str) -> Path:
    """A file of one sink."""
    made = folder / "sinks.toml"
    made.write_text(
        f'[sinks.siem]\nurl = "{url}"\nsecrets = ["whsec_{"A" * 32}"]\nallow = ["127.0.0.1/32"]\n', encoding="utf-8"
    )
    return made


def _taken(seen: list[str], event: Received) -> int:
    """What the receiver of the sink answers: it takes one event, has the next one tried again, and refuses the next."""
    seen.append(event.headers["webhook-id"])
    return (204, 503, 410)[len(seen) % 3]


async def _calls(one: WatchedNode, two: WatchedNode) -> None:
    """Commands over both nodes, followed to their ends; one that fails, and agents that nobody lets in."""
    until = time.monotonic() + BUSY
    headers = {"authorization": "Bearer development-platform-token"}

    async def call(node: WatchedNode, agents: str, at: int) -> None:
        async with plain_client(base_url=node.api, headers=headers, timeout=20) as http:
            while time.monotonic() < until:
                body = {
                    "agent": f"{agents}-{at}",
                    "method": "echo" if at % 2 else "work",
                    "payload": {"text": "x" * 500},
                }
                answer = await http.post("/v1/commands", json=body)
                if answer.status_code == 202:
                    await http.get(f"/v1/commands/{answer.json()['id']}/results?follow=true")
                at = (at + CALLERS) % AGENTS
                await http.post("/v1/commands", json={**body, "agent": "nobody"})

    async def knock(node: WatchedNode) -> None:
        upgrade = {
            "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
            "sec-websocket-key": "a" * 22 + "==", "authorization": "Bearer of-somebody-elses-fleet",
        }  # fmt: skip
        async with plain_client() as http:
            while time.monotonic() < until:
                refused = await http.get(f"{node.link.replace('ws', 'http', 1)}/v1/link", headers=upgrade)
                assert refused.status_code == 401
                await asyncio.sleep(0.5)

    async def read(node: WatchedNode) -> None:
        """A reader of a group that acknowledges nothing, so that it gets the same events again."""
        async with plain_client(base_url=node.api, headers=headers, timeout=20) as http:
            while time.monotonic() < until:
                answer = await http.get("/v1/events?group=ci&ack_within=1")
                assert answer.status_code == 200, answer.text
                await asyncio.sleep(0.5)

    async def say_nothing(node: WatchedNode) -> None:
        """An agent that was let in and does not send its hello, so that a link waits for its welcome at each scrape. A
        busy node may close its connection, as that of any agent, before it answers."""
        host, _, port = node.link.removeprefix("ws://").partition(":")
        while time.monotonic() < until:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                silent = RawClient(reader, writer)
                silent.write(silent.request(
                    "/v1/link", Host=f"{host}:{port}", sec_websocket_protocol=SUBPROTOCOL_JSON,
                    authorization="Bearer development-agent-token",
                ))  # fmt: skip
                assert await silent.answer() == 101
                await asyncio.sleep(until - time.monotonic())
            except ConnectionError:
                await asyncio.sleep(random.uniform(0.1, 0.3))
            finally:
                writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(SILENT):
            group.create_task(say_nothing(two))
        for at in range(CALLERS):
            group.create_task(call(one, two.name, at))
            group.create_task(call(two, one.name, at))
        group.create_task(knock(one))
        group.create_task(read(one))
