"""The processes of a demo: their start in order, their watch, their end in the other order.

Run by `demo`. Each part is a process of its own, started as a user would start it: what works here works
elsewhere. A part counts as started when it has answered, not when its process exists. If one dies, all end
and its last words are shown: a demo that limps on shows nothing. The children get no FAIRLEAD_ variable of
this shell, since a setting meant for another gateway would change this one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import click

from fairlead.cli.child import Child, tail
from fairlead.cli.connection import connect
from fairlead.cli.doors import HOST, Doors
from fairlead.cli.invitation import invitation
from fairlead.client import Client
from fairlead.errors import ConfigError, FairleadError
from fairlead.store.embedded import EmbeddedValkey

READY_TIMEOUT = 30.0
"""Seconds for a part to answer: an interpreter starts in one, on a busy machine in some."""
POLL = 0.1
AGENT_STOP = 10.0
GATEWAY_STOP = 15.0
"""Seconds until SIGKILL: an agent ends its programs in 10 s; a gateway without agents drains at once."""


class Demo:
    """The processes of one demo, from the first start to the last end."""

    def __init__(self, doors: Sequence[Doors], data: Path, count: int) -> None:
        self._doors = doors
        self._data = data
        self._valkey: EmbeddedValkey | None = None
        self._nodes = [f"node-{i + 1}" for i in range(len(doors))]
        self._gateways: list[Child] = []
        self._names = [f"agent-{i + 1}" for i in range(count)]
        self._agents: list[Child] = []
        self._signals = 0

    async def run(self) -> int:
        """0 after Ctrl-C or SIGTERM. Raises FairleadError when a part could not start, or died."""
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

    def _children(self) -> list[Child]:
        return [*self._agents, *self._gateways]

    async def _work(self) -> None:
        try:
            self._data.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"folder {self._data} cannot be made ({e.strerror}); name another: --data FOLDER") from e
        async with connect(self._api, None) as client:
            await self._start(client)
            self._show()
            await self._supervise()

    @property
    def _api(self) -> str:
        """As --api takes it: the addresses of all nodes."""
        return ",".join(f"http://{HOST}:{one.api}" for one in self._doors)

    def _place(self, agent: int) -> int:
        """The node that an agent is linked to: in turn."""
        return agent % len(self._nodes)

    async def _start(self, client: Client) -> None:
        _tell(f"valkey: starting, data in {self._data / 'valkey'}")
        self._valkey = EmbeddedValkey(self._data / "valkey")
        await self._valkey.start()
        _tell(f"valkey: ready at {self._valkey.url} (pid {self._valkey.pid})")

        self._gateways = [
            self._gateway(name, doors, self._valkey.url) for name, doors in zip(self._nodes, self._doors, strict=True)
        ]
        for child in self._gateways:
            _tell(f"{child.name}: starting, log in {child.log}")
            await child.start()
        for child, doors in zip(self._gateways, self._doors, strict=True):
            await self._until(child, partial(_is_ready, doors.admin))
            _tell(f"{child.name}: ready (pid {child.pid})")

        links = [f"ws://{HOST}:{one.link}" for one in self._doors]
        configured = f"--config={os.devnull}"  # not as the agent that is installed on this machine
        self._agents = [
            self._child(name, "agent", "run", configured, f"--url={links[self._place(i)]}", f"--id={name}")
            for i, name in enumerate(self._names)
        ]
        _tell(f"agents: starting, logs in {self._data}/agent-*.log")
        for child in self._agents:
            await child.start()
        for child in self._agents:
            await self._until(child, partial(_is_online, client, child.name))
            _tell(f"{child.name}: online (pid {child.pid})")

    def _gateway(self, name: str, doors: Doors, redis: str) -> Child:
        flags = {
            "node": name,
            "link-port": doors.link,
            "api-port": doors.api,
            "admin-port": doors.admin,
            "redis": redis,
            "drain-timeout": 5,  # nobody waits a minute for the end of a demo
        }
        return self._child(name, "serve", *(f"--{key}={value}" for key, value in flags.items()))

    def _child(self, name: str, *args: str) -> Child:
        env = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        env["PYTHONUNBUFFERED"] = "1"
        # -P: a folder of the working directory must not stand in for the standard library.
        return Child(name, [sys.executable, "-P", "-m", "fairlead", *args], self._data / f"{name}.log", env)

    async def _until(self, child: Child, ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `ready`. Raises FairleadError when the child dies before, or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT
        while not await ready():
            for one in self._children():
                if one.pid and not one.alive:
                    raise FairleadError(one.epitaph())
            if time.monotonic() > deadline:
                late = f"{child.name} was not ready within {READY_TIMEOUT:g} s; the last lines of {child.log}:"
                raise FairleadError(f"{late}\n{tail(child.log)}")
            await asyncio.sleep(POLL)

    def _show(self) -> None:
        assert self._valkey is not None
        nodes = [
            f"{child.name:<7} pid {child.pid}, links ws://{HOST}:{doors.link}, probes http://{HOST}:{doors.admin}/readyz"
            for child, doors in zip(self._gateways, self._doors, strict=True)
        ]
        valkey = f"valkey  pid {self._valkey.pid}, {self._valkey.url}"
        agents = [
            f"{child.name} (pid {child.pid}) at {self._nodes[self._place(i)]}" for i, child in enumerate(self._agents)
        ]
        click.echo(invitation(self._api, [*nodes, valkey], agents, self._names[-1], self._data))
        sys.stdout.flush()

    async def _supervise(self) -> None:
        """Until a part dies; Ctrl-C cancels this."""
        ends = {asyncio.ensure_future(child.ended()): child for child in self._children()}
        try:
            while True:
                done, _ = await asyncio.wait(ends, timeout=1, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    raise FairleadError("; ".join(ends[end].epitaph() for end in done))
                if self._valkey is not None and not self._valkey.running:
                    log = self._data / "valkey" / "valkey.log"
                    raise FairleadError(f"valkey ended; the last lines of {log}:\n{tail(log)}")
        finally:
            for end in ends:
                end.cancel()

    async def _end(self) -> None:
        """Agents first, so that they leave in peace; the gateways next; the store they all write to last."""
        if self._children():
            _tell("ending")
        killed: list[str] = []
        for children, patience in ((self._agents, AGENT_STOP), (self._gateways, GATEWAY_STOP)):
            gently = await asyncio.gather(*(child.stop(patience) for child in children))
            killed += [child.name for child, well in zip(children, gently, strict=True) if not well]
        if self._valkey is not None:
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
