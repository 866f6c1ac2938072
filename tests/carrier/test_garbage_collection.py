"""No object of ours outlives its connection or needs the cyclic garbage collector.

One full collection over a large population stops a process for a long time, so the collector does not know the links
on epoll; then a cycle on the path of a connection would be a leak. These tests run with the collector off, and nearly
all of them with links that it knows, so that they find each that is left.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fairlead.carrier import socket_connection
from fairlead.carrier.client import ClientConnection, connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused
from fairlead.wire.websocket.frames import CLOSE, FIN, TEXT

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, EchoApp, Serve
from support.carrier.tls_site import TlsPeer, TlsSite, make_certificate
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUNDS = 30
OURS = {
    "ServerConnection",
    "SocketConnection",
    "SocketTransport",
    "TlsTransport",
    "HandshakingSocket",
    "ClientConnection",
    "WebSocketUpgrade",
    "HttpConnection",
    "ConnectionLimits",
    "RequestBody",
    "RequestResponseCycle",
    "AsgiChannel",
    "_Opening",
    "_Partial",
    "Poller",
    "RecordingListener",
    "ConnectionRefused",
    "Task",
    "coroutine",
    "HttpRequestParser",
}


@pytest.fixture
def untracked() -> Iterator[None]:
    """The collector is off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def collector_off(untracked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector is off, and knows all links."""
    monkeypatch.setattr(socket_connection, "untrack", lambda _: None)


def census() -> Counter[str]:
    return Counter(name for one in gc.get_objects() if (name := type(one).__name__) in OURS)


def grown(before: Counter[str], spare: int) -> dict[str, int]:
    now = census()
    return {name: now[name] - before[name] for name in now if now[name] - before[name] > spare}


async def test_closed_connections_leave_no_garbage(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, collector_off: None
) -> None:
    port = await serve(attached_app(lambda: RecordingListener(echo=True)))

    async def once(how: str) -> None:
        listener = RecordingListener()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        connection.send(b"x")
        connection.send("y" * 70_000)
        await until(lambda: len(listener.messages) == 2)
        if how == "close":
            connection.close(4000)
        elif how == "abort":
            connection.abort()
        else:
            connection.write(b"\x83\x80" + bytes(4))
        await until(lambda: listener.closed)

    await once("close")
    await until(lambda: len(timer_wheel) == 0)
    before = census()
    for _ in range(ROUNDS):
        for how in ("close", "abort", "violate"):
            await once(how)
    await until(lambda: len(timer_wheel) == 0)
    await until(lambda: not grown(before, 3))


async def test_the_collector_knows_no_object_of_an_idle_link(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, untracked: None, epoll: bool
) -> None:
    """A full collection looks at each that it knows, one on a transport of the event loop and none on epoll. The
    clients' ends are in this process as well, on transports."""
    port = await serve(attached_app(RecordingListener))

    async def open_client() -> ClientConnection:
        return await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel)

    clients = [await open_client() for _ in range(2)]
    before = census()
    clients += [await open_client() for _ in range(ROUNDS)]
    await until(lambda: not grown(before, 0).get("WebSocketUpgrade"))
    servers = ("ServerConnection", "SocketConnection", "SocketTransport")
    now = grown(before, 0)
    kinds = {name: now[name] for name in servers if name in now}
    assert kinds == ({} if epoll else {"ServerConnection": ROUNDS})
    for client in clients:
        client.abort()


async def test_closed_asgi_connections_leave_no_garbage(
    serve: Serve, plain_echo_app: EchoApp, timer_wheel: TimerWheel, collector_off: None
) -> None:
    port = await serve(plain_echo_app())

    async def once() -> None:
        listener = RecordingListener()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        connection.send(b"x")
        await until(lambda: listener.messages)
        connection.close()
        await until(lambda: listener.closed)

    await once()
    await until(lambda: len(timer_wheel) == 0)
    before = census()
    for _ in range(ROUNDS):
        await once()
    await until(lambda: len(timer_wheel) == 0)
    await until(lambda: not grown(before, 3))


async def test_connections_over_tls_leave_no_garbage(serve_on: Serve, collector_off: None, tmp_path: Path) -> None:
    """Links, pages, handshakes that fail, and connections that are lost in the middle of one."""
    site = TlsSite(*make_certificate(tmp_path, "localhost"))
    port = await serve_on(site.app, request_timeout=60.0, **site.options)  # nothing here waits for that
    stranger = ssl.create_default_context()

    async def once() -> None:
        link, page = await site.dial(port), await site.dial(port)
        link.write(link.request("/link"))
        assert await link.answer() == 101
        link.send(FIN | TEXT, b"y" * 70_000)
        assert (await link.expect_frame())[1] == b"y" * 70_000
        link.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
        page.write(b"GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert await page.answer() == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("localhost", port, ssl=stranger)
        lost = TlsPeer(site.trust)
        await lost.open(port)
        lost.writer.write(lost.hello()[:20])
        await lost.writer.drain()
        for one in (link.writer, page.writer, lost.writer):
            one.close()
        site.direct.clear()

    await once()
    before = census()
    for _ in range(ROUNDS):
        await once()
    await until(lambda: not grown(before, 3))


async def test_refused_upgrades_leave_no_garbage(serve: Serve, timer_wheel: TimerWheel, collector_off: None) -> None:
    async def deny(websocket: WebSocket) -> None:
        await websocket.send_denial_response(Response(b"no", 503))

    port = await serve(Starlette(routes=[WebSocketRoute("/", deny)]))

    async def once(port: int) -> None:
        with pytest.raises(ConnectionRefused):
            await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel)

    await once(port)
    before = census()
    for _ in range(ROUNDS):
        await once(port)
        await once(1)  # nobody listens there
    await until(lambda: not grown(before, 3))


async def test_incomplete_requests_leave_no_garbage(serve: Serve, dial: Dial, collector_off: None) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    port = await serve(app, request_timeout=0.1)
    before = census()
    for _ in range(ROUNDS):
        raw = await dial(port, upgrade=False)
        raw.write(b"GET / HT")
    await asyncio.sleep(0)
    await until(lambda: not grown(before, 3))


async def test_connections_that_are_reset_after_their_answer_leave_no_garbage(
    serve: Serve, plain_echo_app: EchoApp, collector_off: None
) -> None:
    port = await serve(plain_echo_app())
    loop = asyncio.get_running_loop()

    async def once() -> None:
        with socket.create_connection(("127.0.0.1", port), 10) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.setblocking(False)
            await loop.sock_sendall(peer, b"GET /elsewhere HTTP/1.1\r\nHost: test\r\n\r\n")
            async with asyncio.timeout(10):
                assert (await loop.sock_recv(peer, 4096)).startswith(b"HTTP/1.1 404")

    await once()
    before = census()
    for _ in range(ROUNDS):
        await once()
    await until(lambda: not grown(before, 3))
