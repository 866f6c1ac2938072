"""The processes of a demo: starts them in order, restarts what ends, stops them in reverse order.

Called by `fairlead demo`. Each part is a process of its own and is started as a user would start it. If a process ends
before all have been ready, the demo ends and shows the last lines of its log; if it ends later, it is restarted. The
children inherit no FAIRLEAD_ variable, because a setting for another gateway would change this one.
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
from fairlead.cli.demo.demo_enrolment import DemoEnrolment
from fairlead.cli.demo.load_balancer import LoadBalancer
from fairlead.cli.demo.ports import HOST, DemoPorts, NodePorts
from fairlead.cli.demo.processes import ChildProcess, Process, ValkeyProcess, describe_end, tail
from fairlead.cli.demo.readiness import is_agent_online, is_node_ready
from fairlead.cli.demo.ready_message import ReadyMessage, command_line
from fairlead.cli.demo.restarts import IsReady, RestartedProcess
from fairlead.client import Client
from fairlead.errors import ConfigError, FairleadError
from fairlead.store.embedded_valkey.server import EmbeddedValkey

READY_TIMEOUT = 30.0
"""Seconds for a part to answer: an interpreter starts within a second, on a busy machine within several."""
POLL_INTERVAL = 0.1
AGENT_STOP = 10.0
GATEWAY_STOP = 15.0
"""Seconds until SIGKILL: an agent ends its programs in 10 s; a gateway without agents drains at once."""


class Demo:
    """The processes of one demo, from the start of the first to the end of the last."""

    def __init__(self, ports: DemoPorts, data: Path, agents: int, sinks: Path | None = None) -> None:
        """`sinks`: the file of the sinks to which the nodes deliver events."""
        self._ports = ports
        self._data = data
        self._sinks = sinks
        self._valkey = ValkeyProcess(EmbeddedValkey(data / "valkey"))
        self._load_balancer = LoadBalancer(HOST, ports.links, [one.link for one in ports.nodes])
        self._nodes: list[ChildProcess] = []
        self._agents: list[ChildProcess] = []
        self._restarted: list[RestartedProcess] = []
        """Every process that has been ready."""
        self._agent_names = [f"agent-{i + 1}" for i in range(agents)]
        self._enrolment = DemoEnrolment(data)
        self._signals = 0

    async def run(self) -> int:
        """Run the demo; returns 0 after Ctrl-C or SIGTERM. Raises FairleadError if a part cannot start or fails
        repeatedly.
        """
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._work())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_signal, work)
        try:
            await work
        except asyncio.CancelledError:
            if not self._signals:
                raise
        finally:
            await self._stop()
        return 0

    def _handle_signal(self, work: asyncio.Future[None]) -> None:
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
            raise ConfigError(
                f"cannot create the folder {self._data}: {e.strerror}; name another with --data FOLDER"
            ) from e
        async with await connect(self._api, None) as client:
            await self._start(client)
            await self._print_welcome(client)
            await self._supervise()

    @property
    def _api(self) -> str:
        """The URLs of all nodes, as --api takes them."""
        return ",".join(f"http://{HOST}:{one.api}" for one in self._ports.nodes)

    @property
    def _links(self) -> str:
        return f"ws://{HOST}:{self._ports.links}"

    async def _start(self, client: Client) -> None:
        await self._start_valkey()
        self._enrolment.make_issuer_key()
        await self._start_nodes()
        await self._load_balancer.start()
        _report(f"agents: starting, logs in {self._data}/agent-*.log")
        # The first agents start one by one, so that each goes to another node; the others start together.
        first = len(self._nodes)
        token = await self._enrolment.token(client, self._agent_names)
        for name in self._agent_names[:first]:
            await self._start_agents(client, [name], token)
        await self._start_agents(client, self._agent_names[first:], token)

    async def _start_valkey(self) -> None:
        async def is_ready() -> bool:
            return self._valkey.server.running  # `start` returns only once it answers

        _report(f"valkey: starting, data in {self._data / 'valkey'}")
        await self._valkey.start()
        _report(f"valkey: ready at {self._valkey.server.url} (pid {self._valkey.pid})")
        self._restart_when_ended(
            self._valkey, is_ready, "Links stay up and programs go on running; new commands are answered with 503"
        )

    async def _start_nodes(self) -> None:
        for i, ports in enumerate(self._ports.nodes):
            child = self._node(f"node-{i + 1}", ports)
            self._nodes.append(child)
            _report(f"{child.name}: starting, log in {child.log}")
            await child.start()
        move = "connect to another node" if len(self._nodes) > 1 else "wait for it"
        for child, ports in zip(self._nodes, self._ports.nodes, strict=True):
            is_ready = partial(is_node_ready, ports.admin)
            await self._wait_ready(child, is_ready)
            _report(f"{child.name}: ready (pid {child.pid})")
            self._restart_when_ended(child, is_ready, f"Its agents {move}, and their programs go on running")

    async def _start_agents(self, client: Client, names: list[str], token: str) -> None:
        agents = []
        for name in names:
            flags = [
                f"--config={os.devnull}",  # not the configuration of an agent that is installed on this machine
                f"--url={self._links}",
                f"--id={name}",
                f"--identity={self._enrolment.folder(name)}",
            ]
            agents.append(self._child(name, "agent", "run", *flags, FAIRLEAD_AGENT_ENROLMENT_TOKEN=token))
        self._agents += agents
        for child in agents:
            await child.start()
        for child in agents:
            is_ready = partial(is_agent_online, client, child.name)
            await self._wait_ready(child, is_ready)
            _report(f"{child.name}: online (pid {child.pid})")
            self._restart_when_ended(child, is_ready, "The commands that it ran end with outcome_unknown")

    def _node(self, name: str, ports: NodePorts) -> ChildProcess:
        flags = {
            "node": name,
            "link-port": ports.link,
            "api-port": ports.api,
            "admin-port": ports.admin,
            "redis": self._valkey.server.url,
            "issuer-key": self._enrolment.issuer_key,
            "drain-timeout": 5,  # nobody wants to wait a minute for a demo to end
        } | ({} if self._sinks is None else {"event-sinks": self._sinks.absolute()})
        return self._child(name, "serve", *(f"--{key}={value}" for key, value in flags.items()))

    def _child(self, name: str, *args: str, **variables: str) -> ChildProcess:
        env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        env |= {"PYTHONUNBUFFERED": "1", **variables}
        # -P: a folder in the working directory must not replace a module of the standard library.
        return ChildProcess(name, [sys.executable, "-P", "-m", "fairlead", *args], self._data / f"{name}.log", env)

    def _restart_when_ended(self, process: Process, is_ready: IsReady, effect: str) -> None:
        watch = f"{effect}: {command_line('agents ls', self._api)}"
        self._restarted.append(RestartedProcess(process, is_ready, watch, _report))

    async def _wait_ready(self, child: ChildProcess, is_ready: IsReady) -> None:
        """Raises FairleadError if a child ends first, or if it takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT
        while not await is_ready():
            for one in self._children():
                if one.code is not None:
                    raise FairleadError(describe_end(one))
            if time.monotonic() > deadline:
                late = f"{child.name} was not ready within {READY_TIMEOUT:g} s; the last lines of {child.log}:"
                raise FairleadError(f"{late}\n{tail(child.log)}")
            await asyncio.sleep(POLL_INTERVAL)

    async def _print_welcome(self, client: Client) -> None:
        nodes = [
            f"{child.name:<7} pid {child.pid}, links ws://{HOST}:{one.link}, probes http://{HOST}:{one.admin}/readyz"
            for child, one in zip(self._nodes, self._ports.nodes, strict=True)
        ]
        valkey = f"valkey  pid {self._valkey.pid}, {self._valkey.server.url}"
        rows = [(child, await client.agent(child.name)) for child in self._agents]
        agents = [f"{child.name} (pid {child.pid}) at {row.node}" for child, row in rows]
        # A node to kill, and an agent whose link it holds. It is not the first node, because the commands that are
        # shown use its API.
        pair = next(((row.node, row.id) for _, row in rows if row.node not in (None, self._nodes[0].name)), None)
        ready = ReadyMessage(self._api, self._links, [*nodes, valkey], agents, self._agent_names[-1], pair, self._data)
        click.echo(ready.text())
        sys.stdout.flush()

    async def _supervise(self) -> None:
        """Restart processes that end, until Ctrl-C cancels this. Raises FairleadError if restarts do not help."""
        tasks = [asyncio.ensure_future(one.supervise()) for one in self._restarted]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self) -> None:
        """Stop the agents first, so that they can say goodbye, then the nodes, and then Valkey, which all nodes write
        to.
        """
        if self._children():
            _report("stopping")
        killed: list[str] = []
        for children, timeout in ((self._agents, AGENT_STOP), (self._nodes, GATEWAY_STOP)):
            stopped = await asyncio.gather(*(child.stop(timeout) for child in children))
            killed += [child.name for child, ended_in_time in zip(children, stopped, strict=True) if not ended_in_time]
        await self._load_balancer.stop()
        await self._valkey.stop()
        for name in killed:
            _report(f"{name}: did not stop in time and was killed; see {self._data}/{name}.log")
        _report("all processes have stopped")


def _report(text: str) -> None:
    click.echo(text, err=True)
