"""The real thing for every test here: a Valkey, `fairlead serve` as a process, agents on real sockets.

`gateway` is shared by the tests of a module that only use it; `own_gateway` belongs to one test that maltreats it.
Scripted agents (`dial`) speak the protocol over the `websockets` library, so that they can do
what the SDK never would.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx2
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.pipeliner import Pipeliner
from fairlead.wire.codec import agent_codec
from fairlead.wire.messages import (
    SUBPROTOCOL_MSGPACK,
    Chunk,
    Cmd,
    FromGateway,
    Hello,
    Message,
    Welcome,
)

AGENT_TOKEN = "development-agent-token"
PLATFORM_TOKEN = "development-platform-token"
PLATFORM = {"authorization": f"Bearer {PLATFORM_TOKEN}"}
READY = re.compile(r"(?:is|are) ready: links on ([\d.]+:\d+), api on ([\d.]+:\d+), admin on ([\d.]+:\d+)")
PATIENCE = 60.0

M = TypeVar("M", bound=Message)


class GatewayProcess:
    """One `fairlead serve`."""

    def __init__(
        self,
        folder: Path,
        redis: str,
        flags: tuple[str, ...] = (),
        name: str = "node-1",
        files: int = 0,
        within: tuple[str, ...] = (),
    ) -> None:
        """`files`: how many it may open, 0 for the machine's limit. `within`: a command that runs it."""
        self.folder = folder
        self._redis = redis
        self._flags = flags
        self._name = name
        self._within = ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh") if files else within
        self._ports = ("0", "0", "0")
        self._process: subprocess.Popen[bytes] | None = None
        self.link = self.api = self.admin = ""

    def start(self) -> None:
        """Start, or start again on the same ports."""
        log = self.folder / f"{self._name}.log"
        with log.open("ab") as sink:
            before = sink.tell()
            self._process = subprocess.Popen(
                [
                    *self._within, sys.executable, "-m", "fairlead", "serve",
                    "--node", self._name, "--redis", self._redis,
                    "--link-port", self._ports[0], "--api-port", self._ports[1], "--admin-port", self._ports[2],
                    "--data", str(self.folder / "data"), *self._flags,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not (found := READY.search(self.log(before))):
            assert self._process.poll() is None, self.log(before)
            assert time.monotonic() < deadline, self.log(before)
            time.sleep(0.02)
        addresses = found.groups()
        self._ports = tuple(a.rpartition(":")[2] for a in addresses)  # type: ignore[assignment]
        self.link, self.api, self.admin = f"ws://{addresses[0]}", f"http://{addresses[1]}", f"http://{addresses[2]}"

    def log(self, start: int = 0) -> str:
        return (self.folder / f"{self._name}.log").read_bytes()[start:].decode()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.wait()


class MakeGateway(Protocol):
    def __call__(
        self, redis: str, *flags: str, name: str = ..., files: int = ..., within: tuple[str, ...] = ...
    ) -> GatewayProcess: ...


@pytest.fixture(scope="module")
def gateway(shared_valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), shared_valkey.url, ("--hello-timeout", "1"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[MakeGateway]:
    made: list[GatewayProcess] = []

    def make(
        redis: str, *flags: str, name: str = "node-1", files: int = 0, within: tuple[str, ...] = ()
    ) -> GatewayProcess:
        process = GatewayProcess(tmp_path, redis, flags, name, files, within)
        made.append(process)
        process.start()
        return process

    yield make
    for process in made:
        process.stop()


class Api:
    """The platform API of one gateway, as a caller uses it."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self.http = httpx2.AsyncClient(base_url=gateway.api, headers=PLATFORM, timeout=60, trust_env=False)

    async def post(self, body: object, **headers: str) -> httpx2.Response:
        return await self.http.post("/v1/commands", json=body, headers=headers)

    async def start(self, agent: str, method: str = "work", **more: object) -> str:
        """Post a command that must be accepted; its id."""
        answer = await self.post({"agent": agent, "method": method, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, command: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/commands/{command}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def lines(self, command: str, start: int = 0, follow: bool = True) -> list[dict[str, Any]]:
        """The whole stream of results."""
        query = f"from={start}&follow={'true' if follow else 'false'}"
        answer = await self.http.get(f"/v1/commands/{command}/results?{query}")
        assert answer.status_code == 200, answer.text
        return [line for raw in answer.text.splitlines() if (line := json.loads(raw))]

    async def end(self, command: str) -> dict[str, Any]:
        """Wait for the end of a command."""
        last = (await self.lines(command))[-1]
        return dict(last["end"])

    async def output(self, command: str) -> str:
        return "".join(line["text"] for line in await self.lines(command) if "text" in line)

    async def agent(self, agent: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/agents/{agent}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


class MakeApi(Protocol):
    def __call__(self, gateway: GatewayProcess) -> Api: ...


@pytest.fixture
async def api_of() -> AsyncIterator[MakeApi]:
    made: list[Api] = []

    def make(gateway: GatewayProcess) -> Api:
        made.append(Api(gateway))
        return made[-1]

    yield make
    for api in made:
        await api.http.aclose()


@pytest.fixture
async def api(gateway: GatewayProcess, api_of: MakeApi) -> Api:
    return api_of(gateway)


class ScriptedAgent:
    """One connection that does exactly what the test says."""

    def __init__(self, socket: ClientConnection, subprotocol: str, agent: str) -> None:
        self.socket = socket
        self.agent = agent
        self.codec = agent_codec(subprotocol)
        self.welcome: Welcome | None = None

    async def send(self, *messages: Message) -> None:
        for message in messages:
            await self.socket.send(self.codec.encode(message))

    async def greet(self, boot: str = "boot-1", conn: int = 1, **more: Any) -> Welcome:
        await self.send(Hello(agent=self.agent, boot=boot, conn=conn, **more))
        self.welcome = await self.expect(Welcome)
        return self.welcome

    async def receive(self) -> FromGateway:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = self.codec.decode(await self.socket.recv())
                if message is not None:
                    return message

    async def expect(self, kind: type[M]) -> M:
        """The next message of `kind`; others are passed over."""
        while True:
            message = await self.receive()
            if isinstance(message, kind):
                return message

    async def command(self) -> Cmd:
        return await self.expect(Cmd)

    async def say(self, command: str, n: int, text: str) -> None:
        await self.send(Chunk(id=command, n=n, kind="stdout", payload=text.encode()))

    async def close_code(self) -> int:
        """Read on until the gateway closes; the code."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.socket.recv()
        except websockets.ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006


class Dial(Protocol):
    def __call__(
        self, gateway: GatewayProcess, agent: str = ..., subprotocol: str = ..., **options: Any
    ) -> Awaitable[ScriptedAgent]: ...


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Connect a scripted agent; without a name it gets one of its own."""
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


Until = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Wait for a condition that has to be asked for."""

    async def wait(condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.05)

    return wait


@pytest.fixture
async def redis_of() -> AsyncIterator[Callable[[EmbeddedValkey], Awaitable[Pipeliner]]]:
    """Look into a Valkey."""
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
