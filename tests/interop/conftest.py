"""The fleet of the foreign agent: two `fairlead serve` processes on a Valkey, and their API.

`nodes` is shared by the tests that only use it; `own_nodes` belongs to one test that kills or drains. The agent is
agent.mjs under Node.js; without Node.js these tests are skipped, and pytest says so at the end of its run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway_process import ServeProcess
from support.interop.foreign_agent import ForeignAgent, StartForeign
from support.interop.platform_api import InteropApi

PROGRAM = Path(__file__).resolve().with_name("agent.mjs")
AGENT_TOKEN = "development-agent-token"


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


def start_two(folder: Path, redis: str, *flags: str) -> Iterator[list[ServeProcess]]:
    pair = [ServeProcess(folder, name, redis, "--heartbeat", "2", *flags) for name in ("node-a", "node-b")]
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
    """A drain of these waits no more than 3 s for the end of commands."""
    yield from start_two(tmp_path, own_valkey.url, "--drain-timeout", "6")


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
        await started[-1].wait_for_line("start")
        return started[-1]

    yield start
    for foreign in started:
        await foreign.aclose()


@pytest.fixture
def api_of(http_of: Callable[[str], httpx2.AsyncClient]) -> Callable[[ServeProcess], InteropApi]:
    return lambda node: InteropApi(http_of(node.api))
