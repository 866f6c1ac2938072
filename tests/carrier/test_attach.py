"""`attach` where the server is not ours: Starlette's TestClient, and a stock uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from fairlead.carrier.attach import attach
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.wire.websocket import frames

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, EchoApp, Serve
from support.waiting import until

module_loop = pytest.mark.asyncio(loop_scope="module")


def app(make: Callable[[], RecordingListener], **options: Any) -> Starlette:
    async def endpoint(websocket: WebSocket) -> None:
        await attach(websocket, make(), **options)

    return Starlette(routes=[WebSocketRoute("/", endpoint)])


def test_attach_echoes_under_the_test_client() -> None:
    listener = RecordingListener(echo=True)
    with TestClient(app(lambda: listener)) as client, client.websocket_connect("/") as peer:
        peer.send_bytes(b"bytes")
        assert peer.receive_bytes() == b"bytes"
        peer.send_text("tëxt")
        assert peer.receive_text() == "tëxt"
        peer.close(4001, "bye")
    assert listener.opened == 1
    assert listener.messages == [b"bytes", "tëxt"]
    assert listener.closed == [(4001, "bye")]


def test_attach_sends_subprotocol_and_headers_under_the_test_client() -> None:
    application = app(RecordingListener, subprotocol="b", headers=[(b"x-mine", b"1")])
    with TestClient(application) as client, client.websocket_connect("/", subprotocols=["a", "b"]) as peer:
        assert peer.accepted_subprotocol == "b"
        assert (b"x-mine", b"1") in (peer.extra_headers or [])


def test_attach_closes_under_the_test_client() -> None:
    class Closer(RecordingListener):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            connection.write(frames.encode(0x82, b"prepared"))
            connection.ping()
            connection.close(4002, "€" * 100)
            connection.send(b"dropped")

    listener = Closer()
    with TestClient(app(lambda: listener)) as client, client.websocket_connect("/") as peer:
        peer.send_bytes(b"go")
        assert peer.receive_bytes() == b"prepared"
        with pytest.raises(WebSocketDisconnect) as ended:
            peer.receive_bytes()
        assert (ended.value.code, ended.value.reason) == (4002, "€" * 41)
    assert listener.closed == [(4002, "€" * 100)]


def test_attach_refuses_a_too_large_message_under_the_test_client() -> None:
    listener = RecordingListener()
    context = ConnectionContext(TimerWheel(), max_message=1000)
    with (
        TestClient(app(lambda: listener, context=context)) as client,
        client.websocket_connect("/") as peer,
    ):
        peer.send_bytes(bytes(1000))
        peer.send_bytes(bytes(1001))
        with pytest.raises(WebSocketDisconnect) as ended:
            peer.receive_bytes()
        assert ended.value.code == 1009
    assert listener.messages == [bytes(1000)]
    assert listener.closed[0][0] == 1009


def test_write_takes_only_complete_frames() -> None:
    class Wrong(RecordingListener):
        def on_message(self, connection: Connection, message: bytes | str) -> None:
            with pytest.raises(ValueError, match="whole frames"):
                connection.write(b"\x83\x00")
            connection.close()

    with TestClient(app(Wrong)) as client, client.websocket_connect("/") as peer:
        peer.send_bytes(b"go")
        with pytest.raises(WebSocketDisconnect):
            peer.receive_bytes()


@module_loop
async def test_attach_returns_at_once_on_our_server_and_after_the_close_elsewhere(
    serve: Serve, foreign: Serve, dial: Dial
) -> None:
    for start, at_once in ((serve, True), (foreign, False)):
        listener, returned = RecordingListener(), asyncio.Event()

        async def endpoint(
            websocket: WebSocket, listener: RecordingListener = listener, returned: asyncio.Event = returned
        ) -> None:
            await attach(websocket, listener)
            returned.set()

        raw = await dial(await start(Starlette(routes=[WebSocketRoute("/", endpoint)])))
        await until(partial(getattr, listener, "connection"))
        if at_once:
            await asyncio.wait_for(returned.wait(), 20)
        raw.send(0x82, b"x")
        await until(partial(getattr, listener, "messages"))
        assert returned.is_set() is at_once
        raw.send(0x88, b"\x03\xe8")
        await until(partial(getattr, listener, "closed"))
        await asyncio.wait_for(returned.wait(), 20)


@module_loop
async def test_receive_after_attach_is_an_error(serve: Serve, dial: Dial) -> None:
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endpoint(websocket: WebSocket) -> None:
        await attach(websocket, RecordingListener())
        try:
            await websocket.receive()
        except RuntimeError as error:
            found.set_result(str(error))

    await dial(await serve(Starlette(routes=[WebSocketRoute("/", endpoint)])))
    assert "attached to a listener" in await asyncio.wait_for(found, 20)


@module_loop
async def test_cancelling_the_endpoint_closes_the_connection(foreign: Serve, dial: Dial) -> None:
    """A foreign server that gives up on its tasks: the listener still hears the end."""
    listener = RecordingListener()
    tasks = []

    async def endpoint(websocket: WebSocket) -> None:
        tasks.append(asyncio.ensure_future(attach(websocket, listener)))
        await asyncio.wait(tasks)

    await dial(await foreign(Starlette(routes=[WebSocketRoute("/", endpoint)])))
    await until(lambda: listener.connection)
    tasks[0].cancel()
    await until(lambda: listener.closed)
    assert listener.closed == [(1006, "")]


@module_loop
@pytest.mark.parametrize("apart", [False, True])
async def test_a_close_inside_a_fragmented_message_is_answered_as_without_attach(
    attached_app: AttachedApp,
    plain_echo_app: EchoApp,
    foreign: Serve,
    dial: Dial,
    apart: bool,
) -> None:
    """What a stock server answers there is its library's business, and a listener changes nothing about it."""
    listener = RecordingListener()
    answers = []
    for application in (attached_app(lambda: listener), plain_echo_app()):
        raw = await dial(await foreign(application))
        raw.send(0x01, b"the first of")
        if apart:
            raw.send(0x89, b"")
            assert await raw.frame() == (0x8A, b"")
        raw.send(0x88, (1000).to_bytes(2, "big"))
        answers.append(await raw.frame())
        raw.end()
    close = answers[0]
    assert close is not None
    assert close == answers[1]
    await until(lambda: listener.closed)
    assert listener.closed[0][0] == int.from_bytes(close[1][:2], "big")
