"""The processes of a demo: their start in order, their watch, their end in the other order.

Run by `demo`. Each part is a process of its own, started as a user would start it: what works here works
elsewhere. A part counts as started when it has answered, not when its process exists. One that dies before all have
answered ends the demo, and its last words are shown; one that dies later is started again. The children get no
FAIRLEAD_ variable of this shell, since a setting meant for another gateway would change this one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import click

from fairlead.cli.api_options import connect
from fairlead.cli.demo.load_balancer import LoadBalancer
from fairlead.cli.demo.ports import HOST, DemoPorts, NodePorts
from fairlead.cli.demo.processes import ChildProcess, Process, ValkeyProcess, epitaph, tail
from fairlead.cli.demo.restarts import Ready, RestartedProcess
from fairlead.cli.demo.welcome import call, invitation
from fairlead.client import Client
from fairlead.errors import ConfigError, FairleadError
from fairlead.store.embedded_valkey.server import EmbeddedValkey

READY_TIMEOUT = 30.0
"""Seconds for a part to answer: an interpreter starts in one, on a busy machine in some."""
POLL = 0.1
AGENT_STOP = 10.0
GATEWAY_STOP = 15.0
"""Seconds until SIGKILL: an agent ends its programs in 10 s; a gateway without agents drains at once."""


class Demo:
    """The processes of one demo, from the first start to the last end."""

    def __init__(self, ports: DemoPorts, data: Path, count: int) -> None:
        self._ports = ports
        self._data = data
        self._valkey = ValkeyProcess(EmbeddedValkey(data / "valkey"))
        self._balancer = LoadBalancer(HOST, ports.entry, [one.link for one in ports.nodes])
        self._nodes: list[ChildProcess] = []
        self._agents: list[ChildProcess] = []
        self._parts: list[RestartedProcess] = []
        """All that are started again: those that have been ready."""
        self._names = [f"agent-{i + 1}" for i in range(count)]
        self._signals = 0

    async def run(self) -> int:
        """0 after Ctrl-C or SIGTERM. Raises FairleadError when a part could not start, or fails again and again."""
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._work())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, work)
        try:
            await work
        except asyncio.CancelledError:
            if not self._signals:
                raise
        finally:
            await self._end()
        return 0

    def _signalled(self, work: asyncio.Future[None]) -> None:
        self._signals += 1
        if self._signals == 1:
            work.cancel()
        else:
            for child in self._children():
                child.kill()

    def _children(self) -> list[ChildProcess]:
        return [*self._agents, *self._nodes]

    async def _work(self) -> None:
        try:
            self._data.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"folder {self._data} cannot be made ({e.strerror}); name another: --data FOLDER") from e
        async with connect(self._api, None) as client:
            await self._start(client)
            await self._show(client)
            await self._supervise()

    @property
    def _api(self) -> str:
        """As --api takes it: the addresses of all nodes."""
        return ",".join(f"http://{HOST}:{one.api}" for one in self._ports.nodes)

    @property
    def _links(self) -> str:
        return f"ws://{HOST}:{self._ports.entry}"

    async def _start(self, client: Client) -> None:
        _tell(f"valkey: starting, data in {self._data / 'valkey'}")
        await self._valkey.start()
        _tell(f"valkey: ready at {self._valkey.server.url} (pid {self._valkey.pid})")
        self._keep(
            self._valkey, self._answers, "Links stay up and what runs goes on; new commands are answered with 503"
        )
        for i, doors in enumerate(self._ports.nodes):
            child = self._node(f"node-{i + 1}", doors)
            self._nodes.append(child)
            _tell(f"{child.name}: starting, log in {child.log}")
            await child.start()
        place = "link to another node" if len(self._nodes) > 1 else "wait for it"
        for child, doors in zip(self._nodes, self._ports.nodes, strict=True):
            ready = partial(_is_ready, doors.admin)
            await self._until(child, ready)
            _tell(f"{child.name}: ready (pid {child.pid})")
            self._keep(child, ready, f"Its agents {place}, and what they run goes on")
        await self._balancer.start()
        _tell(f"agents: starting, logs in {self._data}/agent-*.log")
        # Each of the first ones finds the next node with the fewest links; the others follow all at once.
        first = len(self._nodes)
        for name in self._names[:first]:
            await self._start_agents(client, [name])
        await self._start_agents(client, self._names[first:])

    async def _start_agents(self, client: Client, names: list[str]) -> None:
        configured = f"--config={os.devnull}"  # not as the agent that is installed on this machine
        agents = [
            self._child(name, "agent", "run", configured, f"--url={self._links}", f"--id={name}") for name in names
        ]
        self._agents += agents
        for child in agents:
            await child.start()
        for child in agents:
            ready = partial(_is_online, client, child.name)
            await self._until(child, ready)
            _tell(f"{child.name}: online (pid {child.pid})")
            self._keep(child, ready, "What it ran ends with outcome_unknown")

    def _node(self, name: str, doors: NodePorts) -> ChildProcess:
        flags = {
            "node": name,
            "link-port": doors.link,
            "api-port": doors.api,
            "admin-port": doors.admin,
            "redis": self._valkey.server.url,
            "drain-timeout": 5,  # nobody waits a minute for the end of a demo
        }
        return self._child(name, "serve", *(f"--{key}={value}" for key, value in flags.items()))

    def _child(self, name: str, *args: str) -> ChildProcess:
        env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        env["PYTHONUNBUFFERED"] = "1"
        # -P: a folder of the working directory must not stand in for the standard library.
        return ChildProcess(name, [sys.executable, "-P", "-m", "fairlead", *args], self._data / f"{name}.log", env)

    def _keep(self, process: Process, is_ready: Ready, effect: str) -> None:
        self._parts.append(RestartedProcess(process, is_ready, f"{effect}: {call('agents ls', self._api)}", _tell))

    async def _answers(self) -> bool:
        return self._valkey.server.running  # its start returns once it serves

    async def _until(self, child: ChildProcess, ready: Ready) -> None:
        """Wait until `ready`. Raises FairleadError when a child dies before, or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT
        while not await ready():
            for one in self._children():
                if one.code is not None:
                    raise FairleadError(epitaph(one))
            if time.monotonic() > deadline:
                late = f"{child.name} was not ready within {READY_TIMEOUT:g} s; the last lines of {child.log}:"
                raise FairleadError(f"{late}\n{tail(child.log)}")
            await asyncio.sleep(POLL)

    async def _show(self, client: Client) -> None:
        nodes = [
            f"{child.name:<7} pid {child.pid}, links ws://{HOST}:{doors.link}, probes http://{HOST}:{doors.admin}/readyz"
            for child, doors in zip(self._nodes, self._ports.nodes, strict=True)
        ]
        valkey = f"valkey  pid {self._valkey.pid}, {self._valkey.server.url}"
        rows = [(child, await client.agent(child.name)) for child in self._agents]
        agents = [f"{child.name} (pid {child.pid}) at {row.node}" for child, row in rows]
        # A node to kill, and an agent whose link is there; the API of the commands shown is the first node's.
        pair = next(((row.node, row.id) for _, row in rows if row.node not in (None, self._nodes[0].name)), None)
        click.echo(invitation(self._api, self._links, [*nodes, valkey], agents, self._names[-1], pair, self._data))
        sys.stdout.flush()

    async def _supervise(self) -> None:
        """Start again what ends, until Ctrl-C cancels this. Raises FairleadError when that does not help."""
        kept = [asyncio.ensure_future(part.keep()) for part in self._parts]
        try:
            await asyncio.gather(*kept)
        finally:
            for one in kept:
                one.cancel()
            await asyncio.gather(*kept, return_exceptions=True)

    async def _end(self) -> None:
        """Agents first, so that they leave in peace; the nodes next; the store they all write to last."""
        if self._children():
            _tell("ending")
        killed: list[str] = []
        for children, patience in ((self._agents, AGENT_STOP), (self._nodes, GATEWAY_STOP)):
            gently = await asyncio.gather(*(child.stop(patience) for child in children))
            killed += [child.name for child, well in zip(children, gently, strict=True) if not well]
        await self._balancer.stop()
        await self._valkey.stop()
        for name in killed:
            _tell(f"{name}: did not end when told to, and was killed; see {self._data}/{name}.log")
        _tell("all ended")


async def _is_ready(admin: int) -> bool:
    """GET /readyz by hand: one line of HTTP needs no client."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, admin)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def _is_online(client: Client, name: str) -> bool:
    try:
        return (await client.agent(name)).state == "online"
    except FairleadError:
        return False  # not seen yet, or the API is still starting: asked again until the deadline


def _tell(text: str) -> None:
    click.echo(text, err=True)
