"""An upgrade in the middle: nodes, agents and command lines of two versions in one fleet.

`OLDER_COMMIT` names the older version; by default it is the parent of the last commit. Without git's history,
as in a source tarball, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from faults.balancer import Balancer
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.interop.older_version import COMMIT, PRESENT, HistoryMissing, Version, older

pytestmark = pytest.mark.timeout(500)
TIMEOUT = 120.0
COMMANDS = 10


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    try:
        found = older(tmp_path_factory.mktemp("older"))
    except HistoryMissing as e:
        pytest.skip(f"TWO VERSIONS ARE NOT PLAYED HERE: no commit {COMMIT}: {e}")
    assert found.source() != PRESENT.source(), "its programs must not run the present source"
    return found


class MixedFleet:
    """A node of each version on one Valkey, and an agent of each version at each node."""

    def __init__(self, folder: Path, redis: str, versions: tuple[Version, Version]) -> None:
        self._folder = folder
        self.versions = versions
        self.nodes = {one.name: GatewayProcess(folder, redis, (), one.name, within=one.within()) for one in versions}
        self._balancers: list[Balancer] = []
        self._left: set[str] = set()
        self._agents: list[subprocess.Popen[bytes]] = []
        self.agents: list[str] = []

    async def start(self) -> None:
        for name, node in self.nodes.items():
            await asyncio.to_thread(node.start)
            balancer = Balancer(partial(self._ports, name), random.Random(0))
            await balancer.start()
            self._balancers.append(balancer)
            for version in self.versions:
                self._start_agent(version, f"{version.name}-at-{name}", balancer.port)

    def _start_agent(self, version: Version, name: str, port: int) -> None:
        command = [sys.executable, "-m", "fairlead", "agent", "run", "--id", name, "--url", f"ws://127.0.0.1:{port}"]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*version.within(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._agents.append(process)
        self.agents.append(name)

    def _ports(self, name: str) -> list[int]:
        """Where connections to a node go: to the other one once it leaves."""
        (goes,) = [one for one in self.nodes if (one == name) != (name in self._left)]
        return [int(self.nodes[goes].link.rpartition(":")[2])]

    def leave(self, name: str) -> None:
        """Stop a node as a kubelet does: it is out of the service first."""
        self._left.add(name)
        self.nodes[name].signal(signal.SIGTERM)

    async def stop(self) -> None:
        for process in self._agents:
            process.kill()
            process.wait()
        for balancer in self._balancers:
            await balancer.stop()
        for node in self.nodes.values():
            await asyncio.to_thread(node.stop)

    async def online(self, api: GatewayApi) -> None:
        async with asyncio.timeout(TIMEOUT):
            for name in self.agents:
                while (await api.http.get(f"/v1/agents/{name}")).json().get("state") != "online":
                    await asyncio.sleep(0.1)

    async def run_everywhere(self, api: GatewayApi, word: str) -> None:
        """Commands to all agents at once, each of which must run once and end well."""

        async def one(agent: str, number: int) -> None:
            payload = {"argv": ["echo", f"{word}-{agent}-{number}"]}
            command = await api.start(agent, "exec", payload=payload, deadline=60)
            end = await api.end(command)
            assert end["state"] == "ok", (agent, end)
            assert await api.output(command) == f"{word}-{agent}-{number}\n"

        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*(one(agent, n) for agent in self.agents for n in range(COMMANDS)))


@pytest.fixture
async def fleet(own_valkey: EmbeddedValkey, before: Version, tmp_path: Path) -> AsyncIterator[MixedFleet]:
    made = MixedFleet(tmp_path, own_valkey.url, (before, PRESENT))
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_both_versions_serve_each_other(fleet: MixedFleet, before: Version) -> None:
    """Every agent is reached through every node, before and after one node has drained and is back."""
    apis = {name: GatewayApi(node) for name, node in fleet.nodes.items()}
    try:
        for name, api in apis.items():
            await fleet.online(api)
            await fleet.run_everywhere(api, name)
        for version, (name, node) in itertools.product((before, PRESENT), fleet.nodes.items()):
            for agent in fleet.agents[:2]:  # one of each version
                done = await asyncio.to_thread(version.run, "exec", agent, "--", "uname", "-s", FAIRLEAD_API=node.api)
                assert (done.returncode, done.stdout) == (0, "Linux\n"), (version.name, name, agent, done.stderr)
    finally:
        for api in apis.values():
            await api.http.aclose()


@pytest.mark.parametrize("leaving", ["older", "present"])
async def test_node_of_either_version_drains_to_the_other(fleet: MixedFleet, leaving: str) -> None:
    """Commands that run when their node drains end on the other version's node, and none is lost."""
    staying = next(name for name in fleet.nodes if name != leaving)
    api = GatewayApi(fleet.nodes[staying])
    try:
        await fleet.online(api)
        payload = {"argv": ["sh", "-c", "echo one; sleep 2; echo two"]}
        running = [await api.start(agent, "exec", payload=payload, deadline=120) for agent in fleet.agents]
        fleet.leave(leaving)
        await fleet.run_everywhere(api, "during")
        for command in running:
            assert (await api.end(command))["state"] == "ok"
            assert await api.output(command) == "one\ntwo\n"
        assert await asyncio.to_thread(fleet.nodes[leaving].wait, TIMEOUT) == 0
        await fleet.online(api)
        await fleet.run_everywhere(api, "after")
        for agent in fleet.agents:
            assert (await api.agent(agent))["node"] == staying
    finally:
        await api.http.aclose()
