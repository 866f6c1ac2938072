"""Real servers on 127.0.0.1:0, and clients that connect to them.

`serve(app)` runs an application on our server: with connections on the transports of the event loop, with connections
that leave them (`epoll`), and with connections that are accepted without one (`direct`); `foreign(app)` runs it on a
stock uvicorn; `listeners` is a listener on each of the four. `dial` opens raw clients. `support.carrier` defines their
types and the listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.client import connect
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import AVAILABLE
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.reading.account import ReadBudget
from fairlead.carrier.reading.scheduler import ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.clients import Connect, PolledClients
from support.carrier.listeners import ListenerFactory, RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.scheduled_listeners import Listen, ScheduledListeners
from support.carrier.servers import AttachedApp, Dial, Serve
from support.waiting import until

CLOSE_TIMEOUT = 0.3
REQUEST_TIMEOUT = 0.5


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The gateway runs on uvloop, agents mostly on asyncio's own loop: everything is tested on both."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest_asyncio.fixture(loop_scope="module")
async def timer_wheel() -> AsyncIterator[TimerWheel]:
    """Ticks fast, and reports no connection as silent unless a test lowers `silence`."""
    async with TimerWheel(silence=60.0, tick=0.02) as ticking:
        yield ticking


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


@pytest.fixture(scope="module", params=["direct", "epoll", "transport"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def epoll(mode: str) -> bool:
    """Whether connections are not on the transports of the event loop after the upgrade."""
    return mode != "transport"


def options_of(mode: str, app: object) -> dict[str, Any]:
    """The options of a server whose connections are accepted in this way.

    An application that attaches one listener to each WebSocket at / says how it makes them (`attached_app`). All others
    get their connections from the acceptor, which takes none for itself.
    """
    make: Callable[[], RecordingListener] | None = getattr(app, "make_listener", None)
    direct = DirectEndpoint(b"/", lambda scope: None if make is None else (make(), None, ()))
    return {"epoll": mode != "transport", "direct": direct if mode == "direct" else None}


@pytest_asyncio.fixture(loop_scope="module")
async def serve_on(timer_wheel: TimerWheel, running: Running) -> AsyncIterator[Serve]:
    """Run an application on our carrier, with or without `epoll`; returns the port."""
    before = len(running)

    async def start(app: ASGIApp, **options: Any) -> int:
        defaults = {"close_timeout": CLOSE_TIMEOUT, "request_timeout": REQUEST_TIMEOUT, "stop_timeout": 2}
        return await run(
            Server(config(app, timer_wheel=timer_wheel, **(defaults | options)), own_signals=False), running
        )

    yield start
    for server, _ in running[before:]:
        server.should_exit = True


@pytest.fixture
def serve(serve_on: Serve, mode: str) -> Serve:
    """Run an application on our carrier; returns the port."""

    async def start(app: ASGIApp, **options: Any) -> int:
        return await serve_on(app, **(options_of(mode, app) | options))

    return start


@pytest_asyncio.fixture(loop_scope="module")
async def foreign(running: Running) -> AsyncIterator[Serve]:
    """Run an application on a stock uvicorn with its own WebSocket implementation; returns the port."""
    before = len(running)

    class Quiet(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    async def start(app: ASGIApp, **options: Any) -> int:
        defaults = {"port": 0, "log_config": None, "ws": "websockets-sansio", "timeout_graceful_shutdown": 2}
        return await run(Quiet(uvicorn.Config(app, **(defaults | options))), running)

    yield start
    for server, _ in running[before:]:
        server.should_exit = True


def attached_app(make: Callable[[], RecordingListener], context: ConnectionContext | None = None) -> Starlette:
    async def endpoint(websocket: WebSocket) -> None:
        await attach(websocket, make(), context=context)

    app = Starlette(routes=[WebSocketRoute("/", endpoint)])
    app.__dict__["make_listener"] = make
    return app


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
async def echo_port(request: pytest.FixtureRequest, running: Running, mode: str) -> AsyncIterator[int]:
    """An echo server on each of the two paths through our carrier; one for each module of tests."""
    app = attached_app(lambda: RecordingListener(echo=True)) if request.param == "attached" else plain_echo_app()
    async with TimerWheel(silence=60.0, tick=0.02) as timer_wheel:
        made = config(app, timer_wheel=timer_wheel, close_timeout=CLOSE_TIMEOUT, **options_of(mode, app))
        server = Server(made, own_signals=False)
        yield await run(server, running)
        server.should_exit = True
        await running[-1][1]


@pytest.fixture(name="plain_echo_app")
def plain_echo_app_fixture() -> Callable[[], Starlette]:
    return plain_echo_app


@pytest_asyncio.fixture(loop_scope="module", params=["direct", "epoll", "transport", "foreign"])
async def listeners(
    request: pytest.FixtureRequest,
    attached_app: AttachedApp,
    serve_on: Serve,
    foreign: Serve,
    timer_wheel: TimerWheel,
) -> ListenerFactory:
    made = ListenerFactory(RecordingListener)
    if request.param == "foreign":
        context = ConnectionContext(timer_wheel, max_buffered=made.limit, close_timeout=CLOSE_TIMEOUT)
        made.port = await foreign(attached_app(made, context))
    else:
        app = attached_app(made)
        made.port = await serve_on(app, max_buffered=made.limit, **options_of(request.param, app))
    return made


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> bool:
    return "foreign" not in request.node.callspec.id.split("-")


@pytest_asyncio.fixture(loop_scope="module")
async def dial() -> AsyncIterator[Dial]:
    """Open a raw client; with `upgrade`, as an open WebSocket."""
    opened: list[RawClient] = []

    async def connect(port: int, *, upgrade: bool = True, path: str = "/", **headers: str) -> RawClient:
        raw = RawClient(*await asyncio.open_connection("127.0.0.1", port))
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


@pytest.fixture
def listen(serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel) -> Listen:
    async def start(budget: ReadBudget, max_message: int = 1 << 20, close_timeout: float = 5.0) -> ScheduledListeners:
        listeners = ScheduledListeners(0, ReadScheduler(budget))
        context = ConnectionContext(
            timer_wheel, max_message, close_timeout=close_timeout, read_scheduler=listeners.read_scheduler
        )
        listeners.port = await serve(attached_app(listeners), context=context)
        return listeners

    return start


@pytest_asyncio.fixture(loop_scope="module", name="connect", params=["transport", "poller"])
async def connect_fixture(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Opens a client's connection, once on a transport of the event loop and once on a poller."""
    if request.param == "transport":
        yield connect
        return
    if not AVAILABLE:
        pytest.skip("epoll is Linux's")
    clients = PolledClients()
    yield clients
    clients.poller.close()
