"""Plain ASGI applications on our carrier: what they receive, what they may send, backpressure both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from starlette.types import Receive, Scope, Send

from fairlead.carrier.http_server.asgi_channel import AsgiChannel
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.servers import Dial, Serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIN = 0x80
TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA


class App:
    """An ASGI application that is driven by a test: it accepts, then runs `body`."""

    def __init__(self, body: Callable[[Receive, Send], Awaitable[None]]) -> None:
        self.body = body
        self.failed: list[BaseException] = []
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            return
        assert await receive() == {"type": "websocket.connect"}
        await send({"type": "websocket.accept"})
        try:
            await self.body(receive, send)
        except BaseException as error:
            self.failed.append(error)
            raise
        finally:
            self.ended.set()


async def test_an_application_gets_messages_and_then_a_disconnect(serve: Serve, dial: Dial, no_errors: None) -> None:
    events = []

    async def body(receive: Receive, send: Send) -> None:
        while (event := await receive())["type"] != "websocket.disconnect":
            events.append(event)
        events.append(event)
        events.append(await receive())

    app = App(body)
    raw = await dial(await serve(app))
    raw.send(FIN | BINARY, b"b")
    raw.send(FIN | TEXT, b"t")
    raw.send(FIN | CLOSE, (4001).to_bytes(2, "big") + b"bye")
    await asyncio.wait_for(app.ended.wait(), 20)
    gone = {"type": "websocket.disconnect", "code": 4001, "reason": "bye"}
    assert events == [
        {"type": "websocket.receive", "bytes": b"b"},
        {"type": "websocket.receive", "text": "t"},
        gone,
        gone,
    ]


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1005), ((1000).to_bytes(2, "big"), 1000), ((1001).to_bytes(2, "big"), 1001)]
)
async def test_a_disconnect_event_has_the_close_code(serve: Serve, dial: Dial, payload: bytes, code: int) -> None:
    codes = []

    async def body(receive: Receive, send: Send) -> None:
        codes.append((await receive())["code"])

    app = App(body)
    raw = await dial(await serve(app))
    raw.send(FIN | CLOSE, payload)
    await asyncio.wait_for(app.ended.wait(), 20)
    assert codes == [code]


async def test_a_lost_connection_is_1006_and_send_raises_oserror(serve: Serve, dial: Dial, no_errors: None) -> None:
    async def body(receive: Receive, send: Send) -> None:
        assert (await receive())["code"] == 1006
        await send({"type": "websocket.send", "bytes": b"x"})

    app = App(body)
    raw = await dial(await serve(app))
    raw.writer.transport.abort()
    await asyncio.wait_for(app.ended.wait(), 20)
    assert isinstance(app.failed[0], OSError)


async def test_an_application_may_close(serve: Serve, dial: Dial) -> None:
    seen = []

    async def body(receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close", "code": 4005, "reason": "enough"})
        seen.append(await receive())
        with pytest.raises(RuntimeError, match=r"after 'websocket\.close'"):
            await send({"type": "websocket.send", "bytes": b"x"})

    app = App(body)
    raw = await dial(await serve(app))
    assert await raw.frames() == [(FIN | CLOSE, (4005).to_bytes(2, "big") + b"enough")]
    assert seen == [{"type": "websocket.disconnect", "code": 4005, "reason": "enough"}]


async def test_returning_closes_with_1000(serve: Serve, dial: Dial, no_errors: None) -> None:
    async def body(receive: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "text": "last words"})

    raw = await dial(await serve(App(body)))
    assert await raw.frame() == (FIN | TEXT, b"last words")
    assert await raw.frame() == (FIN | CLOSE, (1000).to_bytes(2, "big"))


async def test_an_exception_closes_with_1011(serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture) -> None:
    async def body(receive: Receive, send: Send) -> None:
        raise LookupError("on purpose")

    raw = await dial(await serve(App(body)))
    assert (await raw.expect_frame())[1][:2] == (1011).to_bytes(2, "big")
    assert "on purpose" in caplog.text


async def test_messages_out_of_place_are_errors(serve: Serve, dial: Dial) -> None:
    async def body(receive: Receive, send: Send) -> None:
        with pytest.raises(RuntimeError, match="out of place"):
            await send({"type": "websocket.accept"})
        with pytest.raises(RuntimeError, match="out of place"):
            await send({"type": "http.response.start", "status": 200})

    app = App(body)
    await dial(await serve(app))
    await asyncio.wait_for(app.ended.wait(), 20)
    assert app.failed == []


async def test_a_slow_application_makes_the_peer_wait(serve: Serve, dial: Dial) -> None:
    go = asyncio.Event()
    sizes = []

    async def body(receive: Receive, send: Send) -> None:
        await go.wait()
        while (event := await receive())["type"] != "websocket.disconnect":
            sizes.append(len(event["bytes"]))

    app = App(body)
    raw = await dial(await serve(app))
    frame = raw.encode(FIN | BINARY, bytes(64 << 10), bytes(4))
    for _ in range(300):
        raw.write(frame)
    with pytest.raises(TimeoutError):  # 19 MiB fit into no socket buffers
        await asyncio.wait_for(raw.writer.drain(), 0.3)
    go.set()
    await asyncio.wait_for(raw.writer.drain(), 20)
    raw.send(FIN | CLOSE)
    await asyncio.wait_for(app.ended.wait(), 20)
    assert sizes == [64 << 10] * 300


@pytest.mark.timeout(600)  # two million messages take five seconds of CPU time, of which a busy machine gives little
async def test_the_number_of_empty_messages_is_bounded(serve: Serve, dial: Dial) -> None:
    go = asyncio.Event()
    count = 0

    async def body(receive: Receive, send: Send) -> None:
        nonlocal count
        await go.wait()
        while (await receive())["type"] != "websocket.disconnect":
            count += 1

    app = App(body)
    raw = await dial(await serve(app))
    frames = raw.encode(FIN | BINARY, b"", bytes(4)) * 100_000
    for _ in range(20):
        raw.write(frames)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(raw.writer.drain(), 0.3)
    go.set()
    await asyncio.wait_for(raw.writer.drain(), 250)
    raw.send(FIN | CLOSE)
    await asyncio.wait_for(app.ended.wait(), 250)
    assert count == 2_000_000


async def test_a_slow_peer_suspends_send(serve: Serve, dial: Dial) -> None:
    sent = 0

    async def body(receive: Receive, send: Send) -> None:
        nonlocal sent
        for _ in range(200):
            await send({"type": "websocket.send", "bytes": bytes(100_000)})
            sent += 1

    app = App(body)
    raw = await dial(await serve(app))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.ended.wait(), 0.4)
    assert sent < 200
    for _ in range(200):
        assert len((await raw.expect_frame())[1]) == 100_000
    await asyncio.wait_for(app.ended.wait(), 20)
    assert app.failed == []


async def test_a_suspended_send_ends_when_the_peer_disconnects(serve: Serve, dial: Dial, no_errors: None) -> None:
    async def body(receive: Receive, send: Send) -> None:
        while True:
            await send({"type": "websocket.send", "bytes": bytes(100_000)})

    app = App(body)
    raw = await dial(await serve(app))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.ended.wait(), 0.3)
    raw.writer.transport.abort()
    await asyncio.wait_for(app.ended.wait(), 20)
    assert isinstance(app.failed[0], OSError)


async def test_one_large_message_does_not_overflow(serve: Serve, dial: Dial) -> None:
    async def body(receive: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "bytes": bytes(3 << 20)})
        await send({"type": "websocket.send", "bytes": b"next"})

    app = App(body)
    raw = await dial(await serve(app, max_buffered=1 << 20))
    assert len((await raw.expect_frame())[1]) == 3 << 20
    assert await raw.frame() == (FIN | BINARY, b"next")


async def test_keepalive_pings_and_then_closes_a_silent_connection(
    serve: Serve, dial: Dial, timer_wheel: TimerWheel
) -> None:
    timer_wheel.silence = 0.2
    codes = []

    async def body(receive: Receive, send: Send) -> None:
        codes.append((await receive())["code"])

    app = App(body)
    raw = await dial(await serve(app))
    for _ in range(3):
        assert await raw.frame() == (FIN | PING, b"")
        raw.send(FIN | PONG)
    assert codes == []
    assert await raw.frame() == (FIN | PING, b"")
    await asyncio.wait_for(app.ended.wait(), 20)
    assert codes == [1011]


class CongestedConnection:
    """A connection whose peer does not read yet, as the channel sees it."""

    closing = False

    def __init__(self) -> None:
        self.congested = True
        self.sent: list[bytes | str] = []

    def send(self, message: bytes | str) -> None:
        self.sent.append(message)


async def test_a_send_that_is_cancelled_while_it_waits_cancels_no_other() -> None:
    channel, connection = AsgiChannel(asyncio.get_running_loop()), CongestedConnection()
    channel.on_open(cast(Connection, connection))
    sends = [asyncio.create_task(channel.send({"type": "websocket.send", "bytes": b"%d" % n})) for n in range(3)]
    await asyncio.sleep(0)
    sends[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await sends[0]
    connection.congested = False
    channel.on_writable(cast(Connection, connection))
    await asyncio.gather(*sends[1:])
    assert connection.sent == [b"1", b"2"]
