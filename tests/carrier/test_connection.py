"""What a listener is told and what it can do, the same on every carrier: open, messages, close, failures.

`listeners` runs the listener on our carrier and on a stock uvicorn, where `attach` falls back to an ASGI loop with the
framing of that server. The peer is the raw client, which misbehaves where a test wants it to.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.wire.websocket import frames

from support.carrier.listeners import ListenerFactory, RecordingListener
from support.carrier.servers import AttachedApp, Dial
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


FIN = 0x80
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9


async def test_a_listener_is_told_of_open_messages_and_close(
    listeners: ListenerFactory, dial: Dial, no_errors: None
) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.opened)
    raw.send(FIN | BINARY, b"bytes")
    raw.send(FIN | TEXT, "tëxt".encode())
    raw.send(FIN | BINARY)
    raw.send(FIN | TEXT)
    raw.send(FIN | CLOSE, (4002).to_bytes(2, "big") + b"age")
    await until(lambda: listeners.last.closed)
    assert listeners.last.messages == [b"bytes", "tëxt", b"", ""]
    assert listeners.last.closed == [(4002, "age")]
    assert (listeners.last.opened, listeners.last.silences, listeners.last.overflows) == (1, [], 0)
    assert (await raw.expect_frame())[0] == FIN | CLOSE


async def test_send_and_prepared_frames(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    connection = listeners.last.open_connection
    connection.send(b"bytes")
    connection.send("tëxt")
    connection.write(frames.encode(FIN | BINARY, b"for many"))
    connection.write(frames.encode(FIN | TEXT, b"for many, too"))
    assert [await raw.frame() for _ in range(4)] == [
        (FIN | BINARY, b"bytes"),
        (FIN | TEXT, "tëxt".encode()),
        (FIN | BINARY, b"for many"),
        (FIN | TEXT, b"for many, too"),
    ]
    await until(lambda: connection.buffered() == 0)
    assert not connection.closing


async def test_our_close_reports_the_code_that_was_sent(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    connection = listeners.last.open_connection
    connection.close(4001, "move on")
    connection.close(4999, "the first close counts")
    connection.send(b"dropped")
    assert connection.closing
    assert await raw.frame() == (FIN | CLOSE, (4001).to_bytes(2, "big") + b"move on")
    raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
    assert await raw.frame() is None
    await until(lambda: listeners.last.closed)
    assert listeners.last.closed == [(4001, "move on")]
    connection.send(b"too late is no error")
    connection.close()
    connection.abort()


async def test_messages_after_our_close_are_not_delivered(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listeners.last.open_connection.close(4000)
    raw.send(FIN | BINARY, b"crossed the close")
    raw.send(FIN | CLOSE, (4000).to_bytes(2, "big"))
    await until(lambda: listeners.last.closed)
    assert listeners.last.messages == []
    assert listeners.last.closed == [(4000, "")]


@pytest.mark.parametrize("reason", ["x" * 500, "€" * 60, "ab" + "\U0001f600" * 40])
async def test_long_reasons_are_cut_between_characters(listeners: ListenerFactory, dial: Dial, reason: str) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listeners.last.open_connection.close(4000, reason)
    first, payload = await raw.expect_frame()
    assert first == FIN | CLOSE
    assert 118 <= len(payload) - 2 <= 123
    assert reason.startswith(payload[2:].decode())


async def test_a_lost_peer_is_1006(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    raw.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    raw.writer.transport.abort()
    await until(lambda: listeners.last.closed)
    assert listeners.last.closed[0][0] in (1005, 1006)


async def test_abort_closes_at_once(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    connection = listeners.last.open_connection
    connection.abort()
    assert connection.closing
    await until(lambda: listeners.last.closed)
    assert listeners.last.closed == [(1006, "")]
    received = await raw.frames()
    assert BINARY not in [first & 15 for first, _ in received]


async def test_a_peer_that_never_answers_a_close_is_disconnected(
    listeners: ListenerFactory, dial: Dial, ours: bool
) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    connection: Any = listeners.last.open_connection
    connection.close(4000, "no answer")
    assert connection in connection.context.timer_wheel.timeout_queue(0.3), "the default is 5 s"
    assert await raw.frame() == (FIN | CLOSE, (4000).to_bytes(2, "big") + b"no answer")
    await until(lambda: listeners.last.closed)
    assert listeners.last.closed == [(4000, "no answer")]
    if ours:  # a foreign server has its own patience
        assert await raw.frame() is None


@pytest.mark.parametrize("hook", ["on_open", "on_message"])
async def test_an_exception_in_a_listener_closes_with_1011(
    listeners: ListenerFactory, dial: Dial, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenListener(RecordingListener):
        pass

    def fail(self: Any, *arguments: object) -> None:
        raise RuntimeError("on purpose")

    setattr(BrokenListener, hook, fail)
    listeners.make = BrokenListener
    raw = await dial(listeners.port)
    raw.send(FIN | BINARY, b"x")
    first, payload = await raw.expect_frame()
    assert (first, payload[:2]) == (FIN | CLOSE, (1011).to_bytes(2, "big"))
    raw.send(FIN | CLOSE, payload[:2])
    await until(lambda: listeners.last.closed)
    assert listeners.last.closed[0][0] == 1011
    assert "listener failed" in caplog.text


async def test_an_exception_in_on_close_is_logged(
    listeners: ListenerFactory, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    class ListenerBrokenAtClose(RecordingListener):
        def on_close(self, connection: object, code: int, reason: str) -> None:
            raise RuntimeError("on purpose")

    listeners.make = ListenerBrokenAtClose
    raw = await dial(listeners.port)
    raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
    await until(lambda: "listener failed in on_close" in caplog.text)


async def test_uvicorns_shutdown_closes_with_1012(
    attached_app: AttachedApp, dial: Dial, timer_wheel: TimerWheel, epoll: bool
) -> None:
    from fairlead.carrier.http_server.uvicorn_server import Server, config

    listener = RecordingListener()
    app = attached_app(lambda: listener)
    server = Server(config(app, timer_wheel=timer_wheel, close_timeout=0.3, epoll=epoll), own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    raw = await dial(server.address[1])
    await until(lambda: listener.connection)
    server.should_exit = True
    first, payload = await raw.expect_frame()
    assert (first, payload[:2]) == (FIN | CLOSE, (1012).to_bytes(2, "big"))
    await asyncio.wait_for(running, 20)
    assert listener.closed[0][0] == 1012


async def test_nothing_is_logged_for_ordinary_connections(
    listeners: ListenerFactory, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "fairlead.carrier"):
        for _ in range(3):
            raw = await dial(listeners.port)
            await until(lambda: listeners.all and listeners.last.connection)
            raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
            await raw.frames()
            await until(lambda: listeners.last.closed)
    assert [r for r in caplog.records if r.name == "fairlead.carrier" and r.levelno > logging.DEBUG] == []
