"""Fixtures of the gateway's tests: a real Valkey, `fairlead serve` as a process, and agents on real sockets.

`gateway` is shared by the tests of a module that only use it; a test that harms its gateway starts one with
`make_gateway`.
Scripted agents (`dial`) speak the protocol over the `websockets` library, so that they can do
what the SDK never would.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.messages import (
    SUBPROTOCOL_MSGPACK,
)

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN, DialAgent, ScriptedAgent


@pytest.fixture(scope="module")
def accepting() -> tuple[str, ...]:
    """The flags that say how links are accepted. The modules that test refusals play all of them with either."""
    return ()


@pytest.fixture(scope="module")
def gateway(
    shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory, accepting: tuple[str, ...]
) -> Iterator[GatewayProcess]:
    flags = ("--hello-timeout", "1", *accepting)
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), shared_valkey.url, flags)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def make_gateway(tmp_path: Path, accepting: tuple[str, ...]) -> Iterator[MakeGateway]:
    made: list[GatewayProcess] = []

    def make(
        redis: str, *flags: str, name: str = "node-1", files: int = 0, within: tuple[str, ...] = ()
    ) -> GatewayProcess:
        process = GatewayProcess(tmp_path, redis, (*accepting, *flags), name, files, within)
        made.append(process)
        process.start()
        return process

    yield make
    for process in made:
        process.stop()


@pytest.fixture
async def api_of() -> AsyncIterator[MakeGatewayApi]:
    made: list[GatewayApi] = []

    def make(gateway: GatewayProcess) -> GatewayApi:
        made.append(GatewayApi(gateway))
        return made[-1]

    yield make
    for api in made:
        await api.http.aclose()


@pytest.fixture
async def api(gateway: GatewayProcess, api_of: MakeGatewayApi) -> GatewayApi:
    return api_of(gateway)


@pytest.fixture
async def dial() -> AsyncIterator[DialAgent]:
    """Connect a scripted agent. Without a name it gets a unique one."""
    sockets: list[ClientConnection] = []

    async def connect(
        gateway: GatewayProcess, agent: str = "", subprotocol: str = SUBPROTOCOL_MSGPACK, **options: Any
    ) -> ScriptedAgent:
        socket = await websockets.connect(
            f"{gateway.link}/v1/link",
            subprotocols=[websockets.Subprotocol(subprotocol)],
            additional_headers={"Authorization": f"Bearer {AGENT_TOKEN}"},
            compression=None,
            ping_interval=None,
            proxy=None,
            max_size=4 << 20,
            **options,
        )
        sockets.append(socket)
        return ScriptedAgent(socket, subprotocol, agent or f"scripted-{secrets.token_hex(4)}")

    yield connect
    for socket in sockets:
        socket.transport.abort()


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
