"""The client with our server, with that of the websockets library, and with servers that send unusual frames."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import pytest
import websockets.asyncio.server
import websockets.exceptions
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.server import ServerConnection

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused

from support.carrier.clients import Connect
from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Serve
from support.scripted_server import accept, scripted
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


MESSAGES: list[bytes | str] = [b"", "", b"x", "tëxt", b"y" * 125, b"y" * 126, b"y" * 65536, "z" * 300_000]


async def test_client_talks_to_our_server(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, no_errors: None, connect: Connect
) -> None:
    port = await serve(attached_app(lambda: RecordingListener(echo=True)))
    listener = RecordingListener()
    connection = await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
    assert listener.opened == 1
    for message in MESSAGES:
        connection.send(message)
    connection.ping(b"p")
    await until(lambda: len(listener.messages) == len(MESSAGES))
    assert listener.messages == MESSAGES
    connection.close(4000, "done")
    await until(lambda: listener.closed)
    assert listener.closed == [(4000, "done")]
    await until(connection.transport.is_closing)


async def test_client_talks_to_a_server_of_the_websockets_library(
    timer_wheel: TimerWheel, no_errors: None, connect: Connect
) -> None:
    async def echo(peer: ServerConnection) -> None:
        with suppress(websockets.exceptions.ConnectionClosedError):  # raised for every code but 1000 and 1001
            async for message in peer:
                await peer.send(message)

    async with websockets.asyncio.server.serve(echo, "127.0.0.1", 0, subprotocols=["b"]) as server:  # type: ignore[list-item]  # a NewType of str
        port = next(iter(server.sockets)).getsockname()[1]
        listener = RecordingListener()
        connection = await connect(
            f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel, subprotocols=["a", "b"]
        )
        assert connection.subprotocol == "b"
        for message in MESSAGES:
            connection.send(message)
        await until(lambda: len(listener.messages) == len(MESSAGES))
        assert listener.messages == MESSAGES
        connection.close(4000, "done")
        await until(lambda: listener.closed)
        assert listener.closed == [(4000, "done")]

        other = RecordingListener()
        await connect(f"ws://127.0.0.1:{port}/", other, timer_wheel=timer_wheel, subprotocols=["b"])
        for peer in server.connections:
            await peer.close(4321, "by the server")
        await until(lambda: other.closed)
        assert other.closed == [(4321, "by the server")]


async def test_headers_and_subprotocols_arrive(serve: Serve, timer_wheel: TimerWheel, connect: Connect) -> None:
    seen: dict[str, Any] = {}

    async def endpoint(websocket: WebSocket) -> None:
        seen.update(websocket.headers)
        seen["query"] = websocket.url.query
        await websocket.accept(subprotocol="fairlead.v1.json")
        await websocket.receive()

    port = await serve(Starlette(routes=[WebSocketRoute("/v1/link", endpoint)]))
    connection = await connect(
        f"ws://localhost:{port}/v1/link?x=%20",
        RecordingListener(),
        timer_wheel=timer_wheel,
        subprotocols=["fairlead.v1.msgpack", "fairlead.v1.json"],
        headers=[("Authorization", "Bearer abc")],
        local_address="127.0.0.1",
    )
    assert connection.subprotocol == "fairlead.v1.json"
    assert seen["authorization"] == "Bearer abc"
    assert seen["host"] == f"localhost:{port}"
    assert seen["query"] == "x=%20"
    connection.abort()


async def test_a_host_name_beyond_ascii_is_sent_as_in_dns(timer_wheel: TimerWheel, connect: Connect) -> None:
    """A proxy stands in for the DNS, where the name is not."""
    heads: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in (b"200 OK", b"503 busy"):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    async with scripted(script) as port:
        proxy = f"http://127.0.0.1:{port}"
        for url in ("ws://bücher.example:8080/", "ws://例え.example/"):
            with pytest.raises(ConnectionRefused, match="with 503"):
                await connect(url, RecordingListener(), timer_wheel=timer_wheel, proxy=proxy)
    hosts = [head.partition(b"Host: ")[2].partition(b"\r\n")[0] for head in heads[1::2]]
    assert hosts == [b"xn--bcher-kva.example:8080", b"xn--r8jz45g.example"]
    with pytest.raises(ConnectionRefused, match="not a valid host name"):
        await connect(f"ws://{'ü' * 70}.example/", RecordingListener(), timer_wheel=timer_wheel)


async def test_frames_that_arrive_with_the_answer_are_not_lost(timer_wheel: TimerWheel, connect: Connect) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x05first\x81\x06second\x88\x02\x0f\xa1")
        await reader.read()

    async with scripted(script) as port:
        listener = RecordingListener()
        await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        await until(lambda: listener.closed)
    assert listener.messages == [b"first", "second"]
    assert listener.closed == [(4001, "")]


async def test_frames_masked_by_a_server_are_refused(timer_wheel: TimerWheel, connect: Connect) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x85" + bytes(4) + b"hello")
        await reader.read()

    async with scripted(script) as port:
        listener = RecordingListener()
        await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1002


async def test_a_message_too_large_for_the_client_closes_with_1009(timer_wheel: TimerWheel, connect: Connect) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, b"\x82\x7e\x03\xe9" + bytes(1001))
        await reader.read()

    async with scripted(script) as port:
        listener = RecordingListener()
        await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel, max_message=1000)
        await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1009


async def test_each_frame_has_a_new_mask(timer_wheel: TimerWheel, connect: Connect) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        got.extend([await reader.readexactly(11), await reader.readexactly(11)])
        done.set()

    async with scripted(script) as port:
        connection = await connect(f"ws://127.0.0.1:{port}/", RecordingListener(), timer_wheel=timer_wheel)
        connection.send(b"hello")
        connection.send(b"hello")
        await asyncio.wait_for(done.wait(), 20)
    assert {frame[:2] for frame in got} == {b"\x82\x85"}
    assert got[0][2:6] != got[1][2:6]
    for frame in got:
        assert bytes(b ^ frame[2 + i % 4] for i, b in enumerate(frame[6:])) == b"hello"


async def test_a_server_that_never_closes_the_socket_is_disconnected(timer_wheel: TimerWheel, connect: Connect) -> None:
    """RFC 6455 §7.1.1 lets the server close first; the client waits, but not for ever."""
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        await reader.readexactly(2)
        writer.write(b"\x88\x02\x03\xe8")
        try:
            await reader.read()
        finally:
            gone.set()

    async with scripted(script) as port:
        listener = RecordingListener()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        connection.context = ConnectionContext(timer_wheel, close_timeout=1.0)
        connection.close()
        await until(lambda: listener.closed)
        assert listener.closed == [(1000, "")]
        assert not gone.is_set()
        await asyncio.wait_for(gone.wait(), 20)


async def test_the_client_needs_no_server_packages() -> None:
    """The base install has none of them."""
    code = (
        "import sys\n"
        "import fairlead.carrier.client, fairlead.carrier.timer_wheel, fairlead.carrier.listener\n"
        "heavy = {'starlette', 'uvicorn', 'uvloop', 'httptools', 'redis', 'prometheus_client'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(done.communicate(), 30)
    assert (out.strip(), err) == (b"[]", b"")
