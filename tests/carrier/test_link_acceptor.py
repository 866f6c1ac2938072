"""Connections that are accepted directly: what becomes a link at once, what goes to uvicorn, and what waits."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.attach import attach
from fairlead.carrier.http_server.admission import Admission
from fairlead.carrier.http_server.link_acceptor import DirectEndpoint, LinkRefusal
from fairlead.carrier.http_server.response import Headers
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHOED = 0x82


class Site:
    """An application with a link, a page and a WebSocket of its own. `direct` and `attached` count how links came."""

    def __init__(self) -> None:
        self.takes = True
        self.refusal: LinkRefusal | None = None
        self.scopes: list[Mapping[str, Any]] = []
        self.direct: list[RecordingListener] = []
        self.attached: list[RecordingListener] = []
        self.app = Starlette(
            routes=[
                WebSocketRoute("/link", self._enter),
                WebSocketRoute("/other", self._other),
                Route("/page", self._page, methods=["GET", "POST"]),
            ]
        )
        self.options = {"epoll": True, "direct": DirectEndpoint(b"/link", self._take)}

    def _take(self, scope: Mapping[str, Any]) -> tuple[RecordingListener, str | None, Headers] | LinkRefusal | None:
        self.scopes.append(scope)
        if not self.takes:
            return self.refusal
        self.direct.append(RecordingListener(echo=True))
        return self.direct[-1], next(iter(scope["subprotocols"]), None), ()

    async def _enter(self, websocket: WebSocket) -> None:
        self.attached.append(RecordingListener(echo=True))
        await attach(websocket, self.attached[-1])

    async def _other(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_bytes(await websocket.receive_bytes())
        await websocket.close()

    async def _page(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.method} {len(await request.body())}")


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_plain_request_is_a_link_at_once(serve_on: Serve, site: Site, dial: Dial) -> None:
    raw = await dial(await serve_on(site.app, **site.options), path="/link", Sec_WebSocket_Protocol="b, a")
    assert raw.headers["sec-websocket-protocol"] == "b"
    raw.send(ECHOED, b"hello")
    assert await raw.frame() == (ECHOED, b"hello")
    assert (len(site.direct), site.attached) == (1, [])
    scope = site.scopes[0]
    assert scope["client"][0] == "127.0.0.1"
    assert dict(scope["headers"])[b"host"] == b"test"


async def test_what_the_endpoint_does_not_take_the_application_gets(serve_on: Serve, site: Site, dial: Dial) -> None:
    site.takes = False
    raw = await dial(await serve_on(site.app, **site.options), path="/link")
    raw.send(ECHOED, b"hello")
    assert await raw.frame() == (ECHOED, b"hello")
    assert (len(site.scopes), len(site.attached)) == (1, 1)


async def test_what_the_endpoint_refuses_is_answered_at_once(serve_on: Serve, site: Site, dial: Dial) -> None:
    site.takes, site.refusal = False, LinkRefusal(503, [(b"retry-after", b"7")], b"busy\n")
    admission = Admission()
    port = await serve_on(site.app, admission=admission, **site.options)
    for behind in (b"", b"frames that nobody reads"):
        raw = await dial(port, upgrade=False)
        raw.write(raw.request("/link") + behind)
        assert await raw.answer() == 503
        assert (raw.headers["retry-after"], raw.headers["connection"]) == ("7", "close")
        assert await raw.body() == b"busy\n"
    assert (len(site.scopes), site.direct, site.attached, len(admission)) == (2, [], [], 0)
    assert site.scopes[0]["client"][0] == "127.0.0.1"


async def test_a_refused_peer_that_has_left_leaves_nothing_behind(serve_on: Serve, site: Site, dial: Dial) -> None:
    site.takes, site.refusal = False, LinkRefusal(503, [], b"busy\n")
    port = await serve_on(site.app, **site.options)
    raw = await dial(port, upgrade=False)
    raw.write(raw.request("/link"))
    assert await raw.answer() == 503
    before = len(os.listdir("/proc/self/fd"))
    for n in range(50):
        with closing(socket.create_connection(("127.0.0.1", port))) as sock:
            sock.sendall(raw.request("/link"))
            if n % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
    raw = await dial(port, upgrade=False)
    raw.write(raw.request("/link"))
    assert await raw.answer() == 503
    raw.writer.transport.abort()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_frames_behind_the_request_are_read(serve_on: Serve, site: Site, dial: Dial) -> None:
    raw = await dial(await serve_on(site.app, **site.options), upgrade=False)
    frames = [os.urandom(size) for size in (1, 100, 60_000)]
    raw.write(raw.request("/link") + b"".join(raw.encode(ECHOED, frame) for frame in frames))
    assert await raw.answer() == 101
    for frame in frames:
        assert await raw.frame() == (ECHOED, frame)
    assert len(site.direct) == 1


async def test_a_request_in_pieces_is_served_by_the_application(serve_on: Serve, site: Site, dial: Dial) -> None:
    raw = await dial(await serve_on(site.app, request_timeout=60, **site.options), upgrade=False)
    for octet in raw.request("/link"):
        raw.write(bytes([octet]))
        await asyncio.sleep(0)
    assert await raw.answer() == 101
    assert len(site.direct) + len(site.attached) == 1


async def test_everything_else_is_served_by_the_application(serve_on: Serve, site: Site, dial: Dial) -> None:
    port = await serve_on(site.app, **site.options)
    raw = await dial(port, upgrade=False)
    body = bytes(3 << 20)
    for request, answer in (
        (b"GET /page HTTP/1.1\r\nHost: t\r\n\r\n", b"GET 0"),
        (b"POST /page HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body) + body, b"POST 3145728"),
        (b"GET /page HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", b"GET 0"),
    ):
        raw.write(request)
        assert await raw.answer() == 200
        assert await raw.reader.readexactly(int(raw.headers["content-length"])) == answer
    assert await raw.body() == b""
    other = await dial(port, path="/other")
    other.send(ECHOED, b"x")
    assert await other.frame() == (ECHOED, b"x")
    assert site.direct == []


async def silent(port: int, count: int) -> list[RawClient]:
    return [RawClient(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]


async def test_a_silent_connection_is_closed_after_the_time_of_a_head(serve_on: Serve, site: Site) -> None:
    [raw] = await silent(await serve_on(site.app, request_timeout=0.1, **site.options), 1)
    assert await raw.body() == b""
    raw.end()


async def test_at_the_limit_the_oldest_silent_connection_is_closed(serve_on: Serve, site: Site) -> None:
    admission = Admission(3, per_address=3)
    port = await serve_on(site.app, request_timeout=60, admission=admission, **site.options)
    opened = await silent(port, 5)
    for raw in opened[:2]:
        assert await raw.body() == b""
    assert (len(admission), admission.evicted) == (3, 2)
    for raw in opened:
        raw.end()
    await until(lambda: len(admission) == 0)


async def test_links_and_lost_connections_are_not_counted(serve_on: Serve, site: Site, dial: Dial) -> None:
    admission = Admission(3)
    port = await serve_on(site.app, request_timeout=60, admission=admission, **site.options)
    links = [await dial(port, path="/link") for _ in range(5)]
    for raw in await silent(port, 3):
        raw.end()
    await until(lambda: len(admission) == 0)
    for raw in links:
        raw.send(ECHOED, b"still here")
        assert await raw.frame() == (ECHOED, b"still here")


async def test_the_client_that_a_trusted_proxy_names(serve_on: Serve, site: Site, dial: Dial) -> None:
    port = await serve_on(site.app, trusted_proxies=["127.0.0.0/8"], **site.options)
    await dial(port, path="/link", X_Forwarded_For="198.51.100.7, 127.0.0.3")
    await dial(port, path="/link")
    assert [scope["client"][0] for scope in site.scopes] == ["198.51.100.7", "127.0.0.1"]
    untrusting = await serve_on(site.app, **site.options)
    await dial(untrusting, path="/link", X_Forwarded_For="198.51.100.7")
    assert site.scopes[-1]["client"][0] == "127.0.0.1"


@pytest.fixture
def descriptors_in_use() -> Callable[[], int]:
    """Limits this process to the descriptors that it has; the result is the limit that it had before."""

    def exhaust() -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with closing(socket.socket()) as lowest_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno(), hard))
        return soft

    return exhaust


async def test_connections_wait_while_no_descriptor_is_free(
    serve_on: Serve,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    descriptors_in_use: Callable[[], int],
    running: list[tuple[uvicorn.Server, asyncio.Task[None]]],
) -> None:
    # The servers of earlier tests would give descriptors back in the middle of this one.
    await asyncio.gather(*(task for server, task in running if server.should_exit))
    caplog.set_level(logging.DEBUG, "fairlead.carrier")
    port = await serve_on(site.app, **site.options)
    with closing(socket.socket()) as peer:
        soft = descriptors_in_use()
        try:
            peer.connect(("127.0.0.1", port))
            peer.sendall(RawClient.request("/link"))
            await until(lambda: caplog.text.count("cannot accept connections: Too many open files") >= 3)
            assert site.direct == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        await until(lambda: site.direct)
    await until(lambda: site.direct[0].closed)
    told = [one for one in caplog.records if one.levelno >= logging.WARNING and "cannot accept" in one.getMessage()]
    assert len(told) == 1, "one line, however often it is tried"


async def test_what_an_endpoint_fails_on_the_application_gets(
    serve_on: Serve, site: Site, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(scope: Mapping[str, Any]) -> None:
        raise RuntimeError("on purpose")

    port = await serve_on(site.app, epoll=True, direct=DirectEndpoint(b"/link", fail))
    await dial(port, path="/link")
    assert len(site.attached) == 1
    assert "the endpoint failed before a link was made" in caplog.text


async def test_a_server_that_stops_closes_what_waits_and_every_link(
    site: Site, dial: Dial, timer_wheel: TimerWheel
) -> None:
    server = Server(config(site.app, timer_wheel=timer_wheel, close_timeout=0.3, **site.options), own_signals=False)  # type: ignore[arg-type]
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.address[1]
    link = await dial(port, path="/link")
    [waiting] = await silent(port, 1)
    page = await dial(port, upgrade=False)
    page.write(b"GET /page HTTP/1.1\r\nHost: t\r\n\r\n")
    assert await page.answer() == 200
    server.should_exit = True
    assert (await link.expect_frame())[1][:2] == (1012).to_bytes(2, "big")
    assert await waiting.body() == b""
    await asyncio.wait_for(running, 20)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    waiting.end()
