"""Real nodes on a Valkey of their own, and simulated agents by the hundred."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner

from support.gateway.platform_api import PLATFORM
from support.gateway.process import GatewayProcess
from support.plain_http import plain_delete, plain_get, plain_post
from support.swarm_process import Swarm
from support.waiting import wait_until

TIMEOUT = 120.0


class RunFleet:
    """Nodes and agents of one fleet, and its API. `api` is that of the first node."""

    def __init__(self, folder: Path, redis: str) -> None:
        self._folder = folder
        self._redis = redis
        self.nodes: list[GatewayProcess] = []
        self._swarms: list[Swarm] = []

    def node(self, *flags: str) -> GatewayProcess:
        made = GatewayProcess(
            self._folder, self._redis, ("--heartbeat=5", "--accept-rate=5000", *flags), f"node-{len(self.nodes) + 1}"
        )
        self.nodes.append(made)
        made.start()
        return made

    def agents(self, count: int, prefix: str, node: int = 0, *flags: str) -> Swarm:
        """Connect `count` agents to one of the nodes."""
        made = Swarm(
            self.nodes[node].link, self._folder, f"--agents={count}", "--processes=1", "--rate=1000",
            f"--id-prefix={prefix}", *flags,
        )  # fmt: skip
        self._swarms.append(made)
        made.until_holding()
        return made

    def begin(self, node: int = 0, **body: object) -> str:
        """Begin a run that must be accepted; returns its id."""
        answer = self.post(node, **body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def post(self, node: int = 0, **body: object) -> Any:
        body.setdefault("method", "sys.info")
        return plain_post(f"{self.nodes[node].api}/v1/runs", json=body, headers=PLATFORM, timeout=30)

    def get(self, run: str, node: int = 0) -> dict[str, Any]:
        answer = plain_get(f"{self.nodes[node].api}/v1/runs/{run}", headers=PLATFORM, timeout=30)
        assert answer.status_code == 200, answer.text
        found = dict(answer.json())
        assert sum(found["counts"].values()) == found["targets"], found
        return found

    def ask(self, run: str, wish: str, node: int = 0) -> dict[str, Any]:
        answer = plain_post(f"{self.nodes[node].api}/v1/runs/{run}/{wish}", headers=PLATFORM, timeout=30)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def cancel(self, run: str, node: int = 0) -> dict[str, Any]:
        answer = plain_delete(f"{self.nodes[node].api}/v1/runs/{run}", headers=PLATFORM, timeout=30)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def agent(self, agent: str, node: int = 0) -> dict[str, Any]:
        return dict(plain_get(f"{self.nodes[node].api}/v1/agents/{agent}", headers=PLATFORM, timeout=30).json())

    def end(self, run: str, node: int = 0, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Wait for the end of a run."""
        return wait_until(lambda: found if (found := self.get(run, node))["ended"] else None, timeout) or {}

    def results(self, run: str, node: int = 0, start: int = 0, follow: bool = True, **more: str) -> list[Any]:
        """The lines of its results."""
        query = "&".join([f"from={start}", f"follow={str(follow).lower()}", *(f"{k}={v}" for k, v in more.items())])
        answer = plain_get(f"{self.nodes[node].api}/v1/runs/{run}/results?{query}", headers=PLATFORM, timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        return [line for raw in answer.text.splitlines() if (line := json.loads(raw))]

    def stop(self) -> None:
        for swarm in self._swarms:
            if swarm.process.poll() is None:
                swarm.thaw()  # its agents notice its end, and would never if they stayed frozen
                swarm.process.kill()
            swarm.process.communicate()
        for node in self.nodes:
            node.stop()


class MakeRunFleet(Protocol):
    def __call__(self, redis: str) -> RunFleet: ...


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[MakeRunFleet]:
    made: list[RunFleet] = []

    def make(redis: str) -> RunFleet:
        made.append(RunFleet(tmp_path, redis))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="module")
def fleet(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFleet]:
    """Two nodes, and 200 agents with the prefix `all` at the second; for tests that harm nothing."""
    made = RunFleet(tmp_path_factory.mktemp("runs"), shared_valkey.url)
    try:
        made.node()
        made.node()
        made.agents(200, "all", 1)
        yield made
    finally:
        made.stop()


@pytest.fixture
async def redis_of() -> AsyncIterator[Callable[[EmbeddedValkey], Awaitable[Pipeliner]]]:
    """A client of a Valkey."""
    made: list[Pipeliner] = []

    async def look(server: EmbeddedValkey) -> Pipeliner:
        store = Pipeliner(server.url)
        made.append(store)
        store.start()
        assert await store.wait_available(10)
        return store

    yield look
    for store in made:
        await store.aclose()
