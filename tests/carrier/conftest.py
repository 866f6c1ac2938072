"""Real servers on 127.0.0.1:0 and a raw client that shares no code with what it tests.

`serve(app)` runs an application on our server, `foreign(app)` on a stock uvicorn. The raw client speaks
frames as literal bytes: its encoder is a second, independent reading of RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.connection import Connection, Terms
from fairlead.carrier.server import Server, config
from fairlead.carrier.sweep import Sweep

CLOSE_TIMEOUT = 0.3
REQUEST_TIMEOUT = 0.5


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway runs on uvloop, agents mostly on asyncio's own loop: everything is tested on both."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():  # what is waited for has no event to wait on
            await asyncio.sleep(0.005)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[None]]:
    return until


class Heard:
    """A listener that writes down what it is told, and echoes if asked to."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.connection: Connection | None = None
        self.opened = 0
        self.messages: list[bytes | str] = []
        self.closed: list[tuple[int, str]] = []
        self.silences: list[int] = []
        self.writable = 0
        self.overflows = 0

    def on_open(self, connection: Connection) -> None:
        self.opened += 1
        self.connection = connection

    def on_message(self, connection: Connection, message: bytes | str) -> None:
        self.messages.append(message)
        if self.echo:
            connection.send(message)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.closed.append((code, reason))
        self.connection = None

    def on_silence(self, connection: Connection) -> None:
        self.silences.append(connection.silent_periods)

    def on_writable(self, connection: Connection) -> None:
        self.writable += 1

    def on_overflow(self, connection: Connection) -> None:
        self.overflows += 1


@pytest.fixture
def heard() -> Callable[..., Heard]:
    return Heard


@pytest_asyncio.fixture(loop_scope="module")
async def sweep() -> AsyncIterator[Sweep]:
    """Ticks fast, and calls nobody silent unless a test lowers `silence`."""
    async with Sweep(silence=60.0, tick=0.02) as ticking:
        yield ticking


Serve = Callable[..., Awaitable[int]]


Running = list[tuple[uvicorn.Server, "asyncio.Task[None]"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    """The servers of a module. uvicorn takes some 0.3 s to stop, so their ends are awaited all together."""
    started: Running = []
    yield started
    for _, task in started:
        await task


async def run(server: uvicorn.Server, running: Running) -> int:
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done())
    running.append((server, task))
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


@pytest_asyncio.fixture(loop_scope="module")
async def serve(sweep: Sweep, running: Running) -> AsyncIterator[Serve]:
    """Run an application on our carrier; returns the port."""
    before = len(running)

    async def start(app: Any, **options: Any) -> int:
        defaults = {"close_timeout": CLOSE_TIMEOUT, "request_timeout": REQUEST_TIMEOUT, "stop_timeout": 2}
        return await run(Server(config(app, sweep=sweep, **(defaults | options)), own_signals=False), running)

    yield start
    for server, _ in running[before:]:
        server.should_exit = True


@pytest_asyncio.fixture(loop_scope="module")
async def foreign(running: Running) -> AsyncIterator[Serve]:
    """Run an application on a stock uvicorn with its own WebSocket implementation; returns the port."""
    before = len(running)

    class Quiet(uvicorn.Server):
        def capture_signals(self) -> Any:
            return nullcontext()

    async def start(app: Any) -> int:
        options: dict[str, Any] = {"port": 0, "log_config": None, "ws": "websockets-sansio"}
        return await run(Quiet(uvicorn.Config(app, **options, timeout_graceful_shutdown=2)), running)

    yield start
    for server, _ in running[before:]:
        server.should_exit = True


def attached_app(make: Callable[[], Heard], terms: Terms | None = None) -> Starlette:
    async def endpoint(websocket: WebSocket) -> None:
        await attach(websocket, make(), terms=terms)

    return Starlette(routes=[WebSocketRoute("/", endpoint)])


@pytest.fixture(name="attached_app")
def attached_app_fixture() -> Callable[..., Starlette]:
    return attached_app


def plain_echo_app() -> Starlette:
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            event = await websocket.receive()
            if event["type"] == "websocket.disconnect":
                return
            kind = "bytes" if event.get("bytes") is not None else "text"
            await websocket.send({"type": "websocket.send", kind: event[kind]})

    return Starlette(routes=[WebSocketRoute("/", endpoint)])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["attached", "asgi"])
async def echo_port(request: pytest.FixtureRequest, running: Running) -> AsyncIterator[int]:
    """An echo server on each of the two roads through our carrier; one for a whole module of tests."""
    app = attached_app(lambda: Heard(echo=True)) if request.param == "attached" else plain_echo_app()
    async with Sweep(silence=60.0, tick=0.02) as sweep:
        server = Server(config(app, sweep=sweep, close_timeout=CLOSE_TIMEOUT), own_signals=False)
        yield await run(server, running)
        server.should_exit = True
        await running[-1][1]


@pytest.fixture(name="plain_echo_app")
def plain_echo_app_fixture() -> Callable[[], Starlette]:
    return plain_echo_app


Frame = tuple[int, bytes]


class Raw:
    """A WebSocket client of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}

    @staticmethod
    def encode(first: int, payload: bytes = b"", mask: bytes | None = None) -> bytes:
        mask = os.urandom(4) if mask is None else mask
        size = len(payload)
        if size <= 125:
            head = bytes([first, 0x80 | size])
        elif size <= 0xFFFF:
            head = bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([first, 0x80 | 127]) + size.to_bytes(8, "big")
        return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))

    @staticmethod
    def request(path: str = "/", **headers: str) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        fields = {
            "Host": "test",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
        } | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in fields.items() if v)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, first: int, payload: bytes = b"") -> None:
        self.writer.write(self.encode(first, payload))

    async def answer(self) -> int:
        """Read the head of the answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        status, *lines = head.decode().rstrip().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        return self.status

    async def body(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 5)

    async def frame(self) -> Frame | None:
        """The next frame, None at the end of the stream."""
        try:
            async with asyncio.timeout(5):
                first, second = await self.reader.readexactly(2)
                assert second < 128, "a server does not mask"
                size = second
                if second > 125:
                    size = int.from_bytes(await self.reader.readexactly(2 if second == 126 else 8), "big")
                return first, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None

    async def frames(self) -> list[Frame]:
        """Everything until the server ends the stream."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found

    def end(self) -> None:
        self.writer.close()


Dial = Callable[..., Awaitable[Raw]]


@pytest_asyncio.fixture(loop_scope="module")
async def dial() -> AsyncIterator[Dial]:
    """Open a raw client; with `upgrade`, as an open WebSocket."""
    opened: list[Raw] = []

    async def connect(port: int, *, upgrade: bool = True, path: str = "/", **headers: str) -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
        opened.append(raw)
        if upgrade:
            raw.write(raw.request(path, **headers))
            assert await raw.answer() == 101
        return raw

    yield connect
    for raw in opened:
        raw.end()
    for raw in opened:
        try:
            await raw.writer.wait_closed()
        except OSError:
            pass


@pytest.fixture
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The test leaves no warning and no error in the log."""
    yield
    loud = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert loud == []
