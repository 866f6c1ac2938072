"""What the foreign agent meets: two `fairlead serve` processes on a Valkey, and their API.

`nodes` is shared by the tests that only use it; `own_nodes` belongs to one test that kills or drains. The agent is
agent.mjs under Node.js; without Node.js these tests are skipped, and pytest says so at the end of its run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import ServeProcess

PROGRAM = Path(__file__).resolve().with_name("agent.mjs")
AGENT_TOKEN = "development-agent-token"
PATIENCE = 20.0


@pytest.fixture(scope="session")
def node_js() -> str:
    """The interpreter. Version 18 is the oldest that distributions still ship."""
    found = shutil.which("node") or shutil.which("nodejs")
    if found is None:
        pytest.skip("THE PROTOCOL IS NOT PROVEN HERE: no Node.js 18 or newer (Debian and Ubuntu: apt install nodejs)")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    if int(version.removeprefix("v").split(".")[0]) < 18:
        pytest.skip(f"THE PROTOCOL IS NOT PROVEN HERE: Node.js {version.strip()} is too old, 18 is needed")
    return found


def start_two(folder: Path, redis: str) -> Iterator[list[ServeProcess]]:
    pair = [ServeProcess(folder, name, redis, "--heartbeat", "2") for name in ("node-a", "node-b")]
    try:
        for node in pair:
            node.wait_ready()
        yield pair
    finally:
        for node in pair:
            node.process.kill()
            node.process.wait()


@pytest.fixture(scope="module")
def nodes(
    node_js: str, shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServeProcess]]:
    yield from start_two(tmp_path_factory.mktemp("nodes"), shared_valkey.url)


@pytest.fixture
async def own_valkey(node_js: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    async with EmbeddedValkey(tmp_path / "valkey") as server:
        yield server


@pytest.fixture
def own_nodes(own_valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[list[ServeProcess]]:
    yield from start_two(tmp_path, own_valkey.url)


class ForeignAgent:
    """agent.mjs as a process. What it tells on its stdout stands in `told`, with the time of its coming."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.told: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()

    def all(self, at: str) -> list[dict[str, Any]]:
        return [line for line in self.told if line["at"] == at]

    async def tells(self, at: str, count: int = 1) -> dict[str, Any]:
        """Wait until it has told `at` so often; the last of these."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: len(self.all(at)) >= count)
        return self.all(at)[count - 1]

    async def order(self, order: str, **more: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"order": order, **more}).encode() + b"\n")
        await self.process.stdin.drain()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE)

    async def aclose(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._reader


class StartForeign(Protocol):
    def __call__(self, links: Sequence[str], agent: str, *flags: str) -> Awaitable[ForeignAgent]: ...


@pytest.fixture
async def start_foreign(node_js: str) -> AsyncIterator[StartForeign]:
    """Start agent.mjs with these links, of which it takes the first (with two, the second comes next)."""
    started: list[ForeignAgent] = []

    async def start(links: Sequence[str], agent: str, *flags: str) -> ForeignAgent:
        process = await asyncio.create_subprocess_exec(
            node_js, str(PROGRAM), ",".join(links), agent, *flags,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "AGENT_TOKEN": AGENT_TOKEN},
        )  # fmt: skip
        started.append(ForeignAgent(process))
        await started[-1].tells("start")
        return started[-1]

    yield start
    for foreign in started:
        await foreign.aclose()


class Api:
    """The platform API of one node, as a caller uses it."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def start(self, agent: str, method: str, payload: object = None, **more: object) -> str:
        """Post a command that must be accepted; its id."""
        body = {"agent": agent, "method": method, "payload": payload or {}, **more}
        answer = await self.http.post("/v1/commands", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def results(self, command: str) -> tuple[str, dict[str, Any]]:
        """All the text, and the end."""
        answer = await self.http.get(f"/v1/commands/{command}/results?follow=true")
        assert answer.status_code == 200, answer.text
        lines = [json.loads(raw) for raw in answer.text.splitlines()]
        return "".join(line.get("text", "") for line in lines), dict(lines[-1]["end"])

    async def recorded(self, command: str, count: int) -> None:
        """Wait until so many results are recorded, reading none."""
        async with asyncio.timeout(PATIENCE):
            while (await self.http.get(f"/v1/commands/{command}")).json()["results"] < count:
                await asyncio.sleep(0.05)

    async def window_end(self, command: str) -> tuple[int, dict[str, Any]]:
        """Wait until a command is over whose results are retained as a window; how many there are, and the end. Reads
        none of them: that would make room."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await self.http.get(f"/v1/commands/{command}")).json()
                if (end := found["targets"][0]["end"]) is not None:
                    return int(found["results"]), dict(end)
                await asyncio.sleep(0.05)

    async def seen(self, command: str, count: int) -> None:
        """Wait until so many results are recorded."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.http.get(f"/v1/commands/{command}/results?follow=false")
                if sum("n" in json.loads(raw) for raw in answer.text.splitlines()) >= count:
                    return
                await asyncio.sleep(0.05)


@pytest.fixture
def api_of(http_of: Callable[[str], httpx2.AsyncClient]) -> Callable[[ServeProcess], Api]:
    return lambda node: Api(http_of(node.api))
