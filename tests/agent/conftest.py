"""A scripted gateway, agents that connect to it from this process or from one of their own, and proxies between them.

What the fixtures make is defined in tests/support, from which the tests import its types.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlead.agent import Agent

from support.agent.agent_process import AgentProcess, alive
from support.agent.connect_proxy import Proxy
from support.agent.fixtures import MakeModule, Serve
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import TIMEOUT, Link
from support.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.stop()
    for link in gateway.links:
        assert link.violation is None, f"the agent broke the protocol: {link.violation}"


@pytest.fixture
async def tls_gateway(certificate: Path) -> AsyncIterator[Gateway]:
    """One that is reached by wss://localhost."""
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    gateway = Gateway()
    await gateway.start(context)
    yield gateway
    await gateway.stop()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def tls_proxy(certificate: Path) -> AsyncIterator[Proxy]:
    context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy = Proxy()
    await proxy.start(context)
    yield proxy
    await proxy.stop()


@pytest.fixture
async def serve(gateway: Gateway) -> AsyncIterator[Callable[[Agent], asyncio.Task[None]]]:
    """Run agents in this process; they are stopped at the end, which must not take long."""
    serving: list[tuple[Agent, asyncio.Task[None]]] = []

    def start(agent: Agent) -> asyncio.Task[None]:
        task = asyncio.create_task(agent.serve())
        serving.append((agent, task))
        return task

    yield start
    for agent, task in serving:
        if not task.done():
            agent.stop()
            async with asyncio.timeout(TIMEOUT):
                await task


@pytest.fixture
def agent(gateway: Gateway) -> Agent:
    """One that is not started yet, so that the test can register its methods."""
    return Agent(gateway.url, "edge-1", "token-1", facts={"env": "test"})


@pytest.fixture
async def link(gateway: Gateway, agent: Agent, serve: Serve) -> Link:
    """A welcomed link. Methods may be registered afterwards, too: they are looked up when a command comes."""
    serve(agent)
    return await gateway.linked()


@pytest.fixture
def cleaned(agent: Agent) -> list[bool]:
    """The agent gets `sleep`, which notes here that it has cleaned up, and `nop`, whose end shows that what came before
    has begun.
    """
    noted: list[bool] = []

    @agent.command("sleep")
    async def sleep() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            noted.append(True)

    @agent.command("nop")
    async def nop() -> None: ...

    return noted


@pytest.fixture
def agent_process(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start `python …` with the test's folder on its import path."""
    made: list[AgentProcess] = []

    def start(*arguments: str) -> AgentProcess:
        made.append(AgentProcess(tmp_path, *arguments))
        return made[-1]

    yield start
    for process in made:
        process.stop()


@pytest.fixture
def gone() -> Callable[[int], Any]:
    """Wait until no process has that pid: dead and reaped, or at least a zombie that only its parent can reap."""

    async def wait(pid: int) -> None:
        await until(lambda: not alive(pid))

    return wait


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeModule:
    """Make a real module of source: a process imports its handler by name."""

    def make(source: str) -> ModuleType:
        name = f"handlers_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        return import_module(name)

    return make
