"""The processes of one run: a Valkey, some nodes, a load balancer, and agents of the real SDK in this process.

Made by the scenarios. Nodes are `fairlead serve` processes as a user starts them; agents run on this process's event
loop, so that what they execute can be counted exactly.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx2

from fairlead.agent import Agent
from fairlead.errors import BusUnavailable
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.reply import Reply
from fairlead.store.servers.opening import open_store

from faults.agent_methods import TOKEN, emit_events, register_methods
from faults.balancer import Balancer
from support.free_ports import free_port
from support.ledger import Ledger
from support.plain_http import plain_client
from support.valkey.server import WRITES_AT_ONCE

PLATFORM = {"authorization": "Bearer development-platform-token"}
READY = re.compile(r"is ready: links on [\d.]+:(\d+), api on [\d.]+:(\d+), admin on [\d.]+:(\d+)")
TIMEOUT = 60.0
HEARTBEAT = 3


class NodeProcess:
    """One `fairlead serve`; keeps its ports over restarts."""

    def __init__(self, name: str, redis: str, folder: Path, flags: Sequence[str] = ()) -> None:
        self.name = name
        self._redis = redis
        self._log = folder / f"{name}.log"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        # Not ports that the kernel chooses: it may give them to an outgoing connection while the node is down.
        self.link, self.api, self.admin = free_port(), free_port(), free_port()

    async def start(self) -> None:
        with self._log.open("ab") as sink:
            before = sink.tell()
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "fairlead", "serve", "--node", self.name, "--redis", self._redis,
                    "--link-port", str(self.link), "--api-port", str(self.api), "--admin-port", str(self.admin),
                    "--heartbeat", str(HEARTBEAT), "--accept-rate", "2000", "--drain-rate", "500",
                    "--drain-timeout", "20", *self._flags,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT
        while not (found := READY.search(self.log(before))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log(before)}")
            await asyncio.sleep(0.05)
        self.link, self.api, self.admin = map(int, found.groups())

    def log(self, start: int = 0) -> str:
        return self._log.read_bytes()[start:].decode()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, TIMEOUT)

    async def stop(self) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                await self.ended()
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                await self.ended()

    def rss(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Machine:
    """An agent with a journal, as a process that may be killed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def start(self, port: int) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.agent_methods", f"ws://127.0.0.1:{port}", self.name, str(self._folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def recorded(self, file: str) -> list[str]:
        """Whole lines only: a process may be killed while it writes one."""
        path = self._folder / file
        return path.read_text().split("\n")[:-1] if path.exists() else []


class FaultFleet:
    """`async with FaultFleet(folder, rng, agents=50) as fleet:` until all agents are online."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        *,
        agents: int,
        nodes: int = 2,
        flags: Sequence[str] = (),
        line: bool = False,
        redis: str = "",
    ) -> None:
        """`line`: the first node reaches Valkey over a line of its own, which may be cut. `redis`: the URL of servers
        that the caller starts and stops; then there is no Valkey of this fleet."""
        self.folder = folder
        self.rng = rng
        self.ledger = Ledger()
        self.valkey = EmbeddedValkey(folder / "valkey", port=0 if line else None, options=WRITES_AT_ONCE)
        self._redis = redis
        self._flags = flags
        self._has_line = line
        self._count = nodes
        self.nodes: list[NodeProcess] = []
        self.balancer = Balancer(self._doors, rng)
        self.valkey_line = Balancer(lambda: [self.valkey.port], rng)
        self.names = [f"agent-{i}" for i in range(agents)]
        """Agents that get commands."""
        self.idle: list[str] = []
        """Agents that get none."""
        self.machines: list[Machine] = []
        self.avoided: NodeProcess | None = None
        """A node that the load balancer has found out: new links go elsewhere."""
        self.repaired_at = 0.0
        self.gate = asyncio.Semaphore(1 << 30)
        """How many more steps of runs may end."""
        self._agents: dict[str, tuple[Agent, asyncio.Task[None]]] = {}
        self._emitters: dict[str, asyncio.Task[None]] = {}
        self._started: list[str] = []
        self._replaced: list[tuple[Agent, asyncio.Task[None]]] = []
        self.http = plain_client(
            headers=PLATFORM, timeout=httpx2.Timeout(15, connect=2),
            limits=httpx2.Limits(max_connections=2000, max_keepalive_connections=200),
        )  # fmt: skip

    async def __aenter__(self) -> FaultFleet:
        if not self._redis:
            await self.valkey.start()
        url = self._redis or self.valkey.url
        self.store = open_store(url)
        self.store.start()
        await self.valkey_line.start()
        # Not for all scenarios: the line is as slow as this process, and Redis has a second for its answers.
        first = url
        if self._has_line:
            first = first.replace(f":{self.valkey.port}", f":{self.valkey_line.port}")
        urls = [first, *[url] * (self._count - 1)]
        self.nodes = [NodeProcess(f"node-{i + 1}", url, self.folder, self._flags) for i, url in enumerate(urls)]
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self.balancer.start()
        for name in self.names:
            self.start_agent(name)
        await self.all_online()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.valkey.running:
            os.kill(self.valkey.pid, signal.SIGCONT)
        for node in self.nodes:
            if node.running:
                node.signal(signal.SIGCONT)
        for emitter in self._emitters.values():
            emitter.cancel()
        for machine in self.machines:
            machine.kill()
        everyone = [*self._agents.values(), *self._replaced]
        for agent, _ in everyone:
            agent.stop()
        await asyncio.gather(*(task for _, task in everyone), return_exceptions=True)
        await self.balancer.stop()
        await asyncio.gather(*(node.stop() for node in self.nodes))
        await self.http.aclose()
        await self.store.aclose()
        await self.valkey_line.stop()
        if not self._redis:
            await self.valkey.stop()

    def _doors(self) -> list[int]:
        return [node.link for node in self.nodes if node.running and node is not self.avoided]

    @property
    def everybody(self) -> set[str]:
        return {*self.names, *self.idle}

    def start_agent(self, name: str, *, emits: bool = True) -> None:
        """Start an agent, or a new process of one that runs. What the older had not sent is gone with it."""
        life = str(len(self._started))
        self._started.append(name)
        agent = Agent(f"ws://127.0.0.1:{self.balancer.port}", id=name, token=TOKEN)
        register_methods(agent, self.ledger.executed, self._step_may_end)
        self.ledger.emitted -= {event for event in self.ledger.emitted if event.split()[0] == name}
        if name in self._emitters:
            self._emitters.pop(name).cancel()
        if emits:
            self._emitters[name] = asyncio.create_task(emit_events(agent, life, self.ledger.emitted.add))
        if name in self._agents:
            self._replaced.append(self._agents[name])
        self._agents[name] = (agent, asyncio.create_task(agent.serve()))

    async def _step_may_end(self) -> None:
        await self.gate.acquire()

    async def add_machines(self, count: int) -> list[Machine]:
        """Agents with a journal, each a process of its own, that get commands as the others do."""
        added = [Machine(f"machine-{i}", self.folder / f"machine-{i}") for i in range(count)]
        for machine in added:
            machine.start(self.balancer.port)
        self.machines += added
        names = [machine.name for machine in added]
        self.idle += names
        await self.all_online()  # before, they are unknown, and commands to them fail as they should
        self.idle = [name for name in self.idle if name not in names]
        self.names += names
        return added

    async def stop_events(self) -> None:
        """No more events; what the machines have recorded goes to the ledger."""
        for emitter in self._emitters.values():
            emitter.cancel()
        await asyncio.gather(*self._emitters.values(), return_exceptions=True)
        for machine in self.machines:
            for key in machine.recorded("runs"):
                self.ledger.executed(key)
            self.ledger.emitted |= set(machine.recorded("emitted"))

    def repair(self) -> None:
        """The fault ends now: from here on the fleet recovers."""
        self.repaired_at = time.monotonic()

    async def linked(self, count: int, timeout: float = TIMEOUT) -> None:
        """Wait until the nodes hold that many agents."""
        async with asyncio.timeout(timeout):
            while sum([await self.metric(node, "fairlead_agents") for node in self.nodes]) < count:
                await asyncio.sleep(0.1)

    async def lazy_caller(self, agent: str, count: int) -> asyncio.StreamWriter:
        """A caller that posts a command of `count` MiB of output, follows it, and reads nothing."""
        node = self.a_node()
        _, writer = await asyncio.open_connection("127.0.0.1", node.api, limit=1024)
        body = json.dumps({"agent": agent, "method": "flood", "payload": {"count": count}, "deadline": 20}).encode()
        headers = {"host": "127.0.0.1", "content-length": len(body), "accept": "application/x-ndjson", **PLATFORM}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"POST /v1/commands HTTP/1.1\r\n{head}\r\n".encode() + body)
        await writer.drain()
        return writer

    async def all_online(self, timeout: float = TIMEOUT) -> float:
        """Wait until every agent is online at every running node; seconds that it took."""
        began = time.monotonic()
        while True:
            states = [await self._online(node) for node in self.nodes if node.running]
            if states and all(state == self.everybody for state in states):
                return time.monotonic() - began
            if time.monotonic() - began > timeout:
                missing = sorted(self.everybody.difference(*states))[:5] if states else ["no node runs"]
                raise TimeoutError(f"not all agents are online after {timeout:g} s: {missing} …")
            await asyncio.sleep(0.1)

    async def _online(self, node: NodeProcess) -> set[str]:
        online: set[str] = set()
        cursor = ""
        try:
            while True:
                answer = await self.http.get(f"http://127.0.0.1:{node.api}/v1/agents?limit=1000&cursor={cursor}")
                if answer.status_code != 200:
                    return set()
                page = answer.json()
                online |= {agent["id"] for agent in page["agents"] if agent["state"] == "online"}
                cursor = page["cursor"] or ""
                if not cursor:
                    return online & self.everybody
        except httpx2.RequestError:
            return set()

    async def metric(self, node: NodeProcess, name: str) -> float:
        """The sum of all samples of `name` at one node."""
        path, deadline = f"http://127.0.0.1:{node.admin}/metrics", time.monotonic() + TIMEOUT
        while True:
            try:
                answer = await self.http.get(path, timeout=TIMEOUT)
                break
            except httpx2.RemoteProtocolError:  # the node has closed a connection that was idle, at this moment
                assert time.monotonic() < deadline, f"{node.name} closes every connection"
        lines = [line for line in answer.text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def redis(self, *args: str | bytes | int) -> Reply:
        """One command to Valkey, repeated while it is away."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return await self.store.submit(*args)
            except BusUnavailable:
                if time.monotonic() > deadline:
                    raise
                await self.store.wait_available(1.0)

    def a_node(self) -> NodeProcess:
        """A random node that runs."""
        return self.rng.choice([node for node in self.nodes if node.running])

    async def holder(self, agent: str) -> NodeProcess:
        """The node that holds `agent` now."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await self.http.get(f"http://127.0.0.1:{self.a_node().api}/v1/agents/{agent}")
                for node in self.nodes:
                    if node.name == answer.json().get("node"):
                        return node
                await asyncio.sleep(0.1)  # a node learns at its next beat that another has started

    def agent_task(self, name: str) -> asyncio.Task[None]:
        """The task in which the newest process of `name` serves."""
        return self._agents[name][1]
