"""Upgrades that fail: refusals, invalid answers, nobody listening, no answer in time."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused

from support.carrier.clients import Connect
from support.carrier.listeners import RecordingListener
from support.carrier.servers import Serve
from support.scripted_server import accept, scripted
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("status", [400, 401, 403, 409, 426, 429, 500, 503])
async def test_a_refused_upgrade_has_status_headers_and_body(
    serve: Serve, timer_wheel: TimerWheel, status: int, connect: Connect
) -> None:
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.send_denial_response(Response(b"why" * 3000, status, {"retry-after": "12"}))

    port = await serve(Starlette(routes=[WebSocketRoute("/", endpoint)]))
    listener = RecordingListener()
    with pytest.raises(ConnectionRefused) as refused:
        await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
    assert refused.value.status == status
    assert refused.value.retry_after == 12.0
    assert refused.value.body == (b"why" * 3000)[:4096]
    assert (listener.opened, listener.closed) == (0, [])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
async def test_a_refusal_is_read_though_the_connection_stays_open(
    timer_wheel: TimerWheel, answer: bytes, connect: Connect
) -> None:
    """A proxy may keep the connection: its end is no signal, and waiting for it would cost the whole
    timeout.
    """

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await reader.read()

    async with scripted(script) as port, asyncio.timeout(20):
        with pytest.raises(ConnectionRefused) as refused:
            await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel, timeout=40)
    assert (refused.value.status, refused.value.body) == (503, b"hello")


async def test_a_refusal_whose_chunks_never_begin_is_not_read_for_ever(
    timer_wheel: TimerWheel, connect: Connect
) -> None:
    """The extension of a chunk may be of any length, and is no part of the body."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;")
        while not writer.is_closing():
            writer.write(bytes(1 << 10))
            await writer.drain()

    async with scripted(script) as port, asyncio.timeout(20):
        with pytest.raises(ConnectionRefused) as refused:
            await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel, timeout=40)
    assert (refused.value.status, refused.value.body) == (503, b"hello")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"", "connection was lost"),
        (
            b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "wrong Sec-WebSocket-Accept",
        ),
        (b"HTTP/1.1 101 x\r\n\r\n", "does not upgrade"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "with 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "with 302"),
        (b"HTTP/1.1 101 x\r\nX: " + b"y" * 20_000, "more than 16384 bytes"),
    ],
)
async def test_an_answer_that_is_not_http_is_refused(
    timer_wheel: TimerWheel, answer: bytes, words: str, connect: Connect
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with scripted(script) as port:
        with pytest.raises(ConnectionRefused, match=words):
            await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel)


async def test_a_port_where_nobody_listens_is_reported(timer_wheel: TimerWheel, connect: Connect) -> None:
    with socket.socket() as held:  # bound, so that nobody else gets the port, and not listening
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefused, match="cannot be reached") as refused:
            await connect(f"ws://127.0.0.1:{held.getsockname()[1]}/", RecordingListener(), timer_wheel=timer_wheel)
    assert refused.value.status == 0
    assert isinstance(refused.value.__cause__, OSError)


async def test_a_host_name_that_does_not_exist_is_reported(timer_wheel: TimerWheel, connect: Connect) -> None:
    with pytest.raises(ConnectionRefused, match="cannot be reached"):
        await connect("ws://no-such-host.invalid/", RecordingListener(), timer_wheel=timer_wheel)


@pytest.mark.parametrize("when", ["before", "inside"])
async def test_an_answer_that_does_not_come_in_time_is_reported(
    timer_wheel: TimerWheel, when: str, connect: Connect
) -> None:
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if when == "inside":
                writer.write(b"HTTP/1.1 503 x\r\nContent-Length: 100\r\n\r\nhalf")
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        with pytest.raises(ConnectionRefused, match=r"did not answer within 0\.2 s"):
            await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel, timeout=0.2)
        await asyncio.wait_for(gone.wait(), 20)


async def test_cancelling_connect_closes_the_connection(timer_wheel: TimerWheel, connect: Connect) -> None:
    here, gone = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.set()
        try:
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        opening = asyncio.create_task(connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel))
        await asyncio.wait_for(here.wait(), 20)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(gone.wait(), 20)


async def test_cancelling_connect_in_the_moment_of_the_answer_closes_the_connection(
    timer_wheel: TimerWheel, connect: Connect
) -> None:
    """The connection is open, and whoever asked for it will never hear of it."""
    opening: asyncio.Task[object]
    gone = asyncio.Event()

    class Cancelling(RecordingListener):
        def on_open(self, connection: Connection) -> None:
            super().on_open(connection)
            opening.cancel()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        try:
            await reader.read()
        finally:
            gone.set()

    listener = Cancelling()
    async with scripted(script) as port:
        opening = asyncio.create_task(connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel))
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: listener.closed == [(1006, "")])
        await asyncio.wait_for(gone.wait(), 20)


@pytest.mark.parametrize("url", ["http://x/", "ws:///path", "x", "ws://user:secret@host/", ""])
async def test_invalid_urls_are_refused(timer_wheel: TimerWheel, url: str, connect: Connect) -> None:
    with pytest.raises(ValueError, match="expected ws://") as caught:
        await connect(url, RecordingListener(), timer_wheel=timer_wheel)
    assert "secret" not in str(caught.value)
