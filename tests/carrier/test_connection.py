"""What a listener is told and what it can do, the same on every carrier.

`port` runs the listener three ways: on our carrier, on a stock uvicorn, where `attach` falls back to an
ASGI loop, and there with the framing of that server. The peer is the raw client or, where it must
misbehave, a bare socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from fairlead.carrier.connection import Terms
from fairlead.carrier.sweep import Sweep
from fairlead.wire import framing

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIN = 0x80
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9
LIMIT = 256 << 10

Dial = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[None]]


class Gate:
    """A server whose connections are told to one listener each; `last` is the newest."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.echo = False
        self.port = 0
        self.all: list[Any] = []

    def __call__(self) -> Any:
        self.all.append(self.make(echo=self.echo))
        return self.all[-1]

    @property
    def last(self) -> Any:
        return self.all[-1]


@pytest_asyncio.fixture(loop_scope="module", params=["ours", "foreign"])
async def gate(
    request: pytest.FixtureRequest, heard: Any, attached_app: Any, serve: Any, foreign: Any, sweep: Sweep
) -> Gate:
    made = Gate(heard)
    if request.param == "ours":
        made.port = await serve(attached_app(made), max_buffered=LIMIT)
    else:
        terms = Terms(sweep, max_buffered=LIMIT, close_timeout=0.3)
        made.port = await foreign(attached_app(made, terms))
    return made


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> bool:
    return "ours" in request.node.callspec.id.split("-")


async def test_open_messages_close(gate: Gate, dial: Dial, until: Until, no_errors: None) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.opened)
    raw.send(FIN | BINARY, b"bytes")
    raw.send(FIN | TEXT, "tëxt".encode())
    raw.send(FIN | BINARY)
    raw.send(FIN | TEXT)
    raw.send(FIN | CLOSE, (4002).to_bytes(2, "big") + b"age")
    await until(lambda: gate.last.closed)
    assert gate.last.messages == [b"bytes", "tëxt", b"", ""]
    assert gate.last.closed == [(4002, "age")]
    assert (gate.last.opened, gate.last.silences, gate.last.overflows) == (1, [], 0)
    assert (await raw.frame())[0] == FIN | CLOSE


async def test_send_and_prepared_frames(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    connection = gate.last.connection
    connection.send(b"bytes")
    connection.send("tëxt")
    connection.write(framing.encode(FIN | BINARY, b"for many"))
    connection.write(framing.encode(FIN | TEXT, b"for many, too"))
    assert [await raw.frame() for _ in range(4)] == [
        (FIN | BINARY, b"bytes"),
        (FIN | TEXT, "tëxt".encode()),
        (FIN | BINARY, b"for many"),
        (FIN | TEXT, b"for many, too"),
    ]
    await until(lambda: connection.buffered() == 0)
    assert not connection.closing


async def test_our_close_reports_the_code_that_was_sent(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    connection = gate.last.connection
    connection.close(4001, "move on")
    connection.close(4999, "the first close counts")
    connection.send(b"dropped")
    assert connection.closing
    assert await raw.frame() == (FIN | CLOSE, (4001).to_bytes(2, "big") + b"move on")
    raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
    assert await raw.frame() is None
    await until(lambda: gate.last.closed)
    assert gate.last.closed == [(4001, "move on")]
    connection.send(b"too late is no error")
    connection.close()
    connection.abort()


async def test_after_our_close_messages_are_not_delivered(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    gate.last.connection.close(4000)
    raw.send(FIN | BINARY, b"crossed the close")
    raw.send(FIN | CLOSE, (4000).to_bytes(2, "big"))
    await until(lambda: gate.last.closed)
    assert gate.last.messages == []
    assert gate.last.closed == [(4000, "")]


@pytest.mark.parametrize("reason", ["x" * 500, "€" * 60, "ab" + "\U0001f600" * 40])
async def test_long_reasons_are_cut_between_characters(gate: Gate, dial: Dial, until: Until, reason: str) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    gate.last.connection.close(4000, reason)
    first, payload = await raw.frame()
    assert first == FIN | CLOSE
    assert 118 <= len(payload) - 2 <= 123
    assert reason.startswith(payload[2:].decode())


async def test_a_peer_that_vanishes(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    raw.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    raw.writer.transport.abort()
    await until(lambda: gate.last.closed)
    assert gate.last.closed[0][0] in (1005, 1006)


async def test_abort(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    connection = gate.last.connection
    connection.abort()
    assert connection.closing
    await until(lambda: gate.last.closed)
    assert gate.last.closed == [(1006, "")]
    frames = await raw.frames()
    assert BINARY not in [first & 15 for first, _ in frames]


async def test_a_peer_that_never_answers_a_close(gate: Gate, dial: Dial, until: Until, ours: bool) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    began = asyncio.get_running_loop().time()
    gate.last.connection.close(4000, "no answer")
    assert await raw.frame() == (FIN | CLOSE, (4000).to_bytes(2, "big") + b"no answer")
    await until(lambda: gate.last.closed)
    assert gate.last.closed == [(4000, "no answer")]
    if ours:  # a foreign server has its own patience
        took = asyncio.get_running_loop().time() - began
        assert 0.25 < took < 2.0
        assert await raw.frame() is None


@pytest.mark.parametrize("hook", ["on_open", "on_message"])
async def test_an_exception_in_a_listener_closes_with_1011(
    gate: Gate, heard: Any, dial: Dial, until: Until, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(heard):  # type: ignore[misc]  # a class from a fixture has no static type
        pass

    def fail(self: Any, *arguments: object) -> None:
        raise RuntimeError("on purpose")

    setattr(Broken, hook, fail)
    gate.make = Broken
    raw = await dial(gate.port)
    raw.send(FIN | BINARY, b"x")
    first, payload = await raw.frame()
    assert (first, payload[:2]) == (FIN | CLOSE, (1011).to_bytes(2, "big"))
    raw.send(FIN | CLOSE, payload[:2])
    await until(lambda: gate.last.closed)
    assert gate.last.closed[0][0] == 1011
    assert "listener failed" in caplog.text


async def test_an_exception_in_on_close_is_logged(
    gate: Gate, heard: Any, dial: Dial, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(heard):  # type: ignore[misc]  # a class from a fixture has no static type
        def on_close(self, connection: object, code: int, reason: str) -> None:
            raise RuntimeError("on purpose")

    gate.make = Broken
    raw = await dial(gate.port)
    raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
    await until(lambda: "listener failed in on_close" in caplog.text)


# Backpressure.


async def slow_reader(port: int) -> socket.socket:
    """An upgraded socket with a small window that reads nothing more."""
    from base64 import b64encode

    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    key = b64encode(bytes(16)).decode()
    request = (
        "GET / HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    await loop.sock_sendall(sock, request.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await asyncio.wait_for(loop.sock_recv(sock, 1), 5)
    return sock


async def drain(sock: socket.socket, enough: int = 1 << 40, seconds: float = 10.0) -> int:
    """Read until the other end closes, or enough has come; returns how much came."""
    loop, total = asyncio.get_running_loop(), 0
    async with asyncio.timeout(seconds):
        try:
            while total < enough and (data := await loop.sock_recv(sock, 1 << 20)):
                total += len(data)
        except ConnectionResetError:
            pass
    return total


async def test_a_slow_reader_overflows_and_is_closed(gate: Gate, until: Until) -> None:
    sock = await slow_reader(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    listener, connection = gate.last, gate.last.connection
    message, sent = bytes(16 << 10), 0
    async with asyncio.timeout(20):
        while not connection.closing:
            connection.send(message)
            sent += len(message)
            await asyncio.sleep(0)
    assert listener.overflows == 1
    assert connection.congested
    assert connection.buffered() <= LIMIT + 2 * len(message) + 1024, "bounded, whatever is sent"
    await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1013
    with sock:
        assert await drain(sock) < sent


async def test_a_listener_may_choose_how_an_overflow_ends(gate: Gate, heard: Any, until: Until) -> None:
    class Strict(heard):  # type: ignore[misc]  # a class from a fixture has no static type
        def on_overflow(self, connection: Any) -> None:
            super().on_overflow(connection)
            connection.close(4408, "slow reader")

    gate.make = Strict
    sock = await slow_reader(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    listener, connection = gate.last, gate.last.connection
    async with asyncio.timeout(20):
        while not connection.closing:
            connection.send(bytes(16 << 10))
            await asyncio.sleep(0)
    await until(lambda: listener.closed)
    assert listener.closed == [(4408, "slow reader")]
    sock.close()


async def test_congestion_and_relief(gate: Gate, until: Until) -> None:
    """A sender that stops at `congested` and goes on at `on_writable` never overflows and loses nothing."""
    sock = await slow_reader(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    listener, connection = gate.last, gate.last.connection
    message, sent = bytes(8 << 10), 0
    async with asyncio.timeout(20):
        while not connection.congested:
            connection.send(message)
            sent += 1
            await asyncio.sleep(0)
    assert listener.writable == 0
    reading = asyncio.create_task(drain(sock, sent * len(message)))
    await until(lambda: listener.writable)
    assert not connection.congested
    assert await reading >= sent * len(message)
    connection.close()
    await until(lambda: listener.closed)
    assert (listener.overflows, listener.closed[0][0]) == (0, 1000)
    sock.close()


async def test_one_message_may_be_larger_than_the_buffer(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    gate.last.connection.send(bytes(5 * LIMIT))
    assert await raw.frame() == (FIN | BINARY, bytes(5 * LIMIT))
    assert gate.last.overflows == 0


async def test_paused_reading_makes_the_peer_wait(gate: Gate, dial: Dial, until: Until) -> None:
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    listener = gate.last
    listener.connection.pause_reading()
    listener.connection.pause_reading()
    frame = raw.encode(FIN | BINARY, bytes(64 << 10), bytes(4))
    for _ in range(400):
        raw.write(frame)
    with pytest.raises(TimeoutError):  # 25 MiB fit into no socket buffers
        await asyncio.wait_for(raw.writer.drain(), 0.3)
    assert len(listener.messages) < 200
    listener.connection.resume_reading()
    listener.connection.resume_reading()
    await asyncio.wait_for(raw.writer.drain(), 20)
    await until(lambda: len(listener.messages) == 400, 20)


# Silence.


async def test_silence_is_told_in_periods_and_any_byte_ends_it(
    gate: Gate, dial: Dial, until: Until, sweep: Sweep, ours: bool
) -> None:
    sweep.silence = 0.4
    raw = await dial(gate.port)
    await until(lambda: gate.all and gate.last.connection)
    listener = gate.last
    await until(lambda: len(listener.silences) >= 2)
    assert listener.silences[:2] == [1, 2]
    if ours:
        raw.write(b"\x82")  # not even a frame
    else:
        raw.send(FIN | BINARY, b"x")
    await until(lambda: listener.connection.silent_periods == 0)
    listener.silences.clear()
    await until(lambda: listener.silences)
    assert listener.silences == [1]


async def test_talking_or_paused_is_not_silent(gate: Gate, dial: Dial, until: Until, sweep: Sweep) -> None:
    sweep.silence = 0.4
    talker, sleeper, mute = await dial(gate.port), await dial(gate.port), await dial(gate.port)
    await until(lambda: len(gate.all) == 3 and all(one.connection for one in gate.all))
    mute.send(FIN | BINARY, b"the last")
    await until(lambda: any(one.messages for one in gate.all))
    muted = next(one for one in gate.all if one.messages)
    talker.send(FIN | BINARY, b"0")
    await until(lambda: sum(bool(one.messages) for one in gate.all) == 2)
    talking = next(one for one in gate.all if one.messages == [b"0"])
    paused = next(one for one in gate.all if one not in (muted, talking))
    paused.connection.pause_reading()
    async with asyncio.timeout(10):
        while len(muted.silences) < 2:
            talker.send(FIN | BINARY, b"x")
            await asyncio.sleep(0.02)
    assert talking.silences == []
    assert paused.silences == []
    assert sleeper is not None


async def test_uvicorns_shutdown_closes_with_1012(
    heard: Any, attached_app: Any, serve: Any, dial: Dial, until: Until, sweep: Sweep
) -> None:
    from fairlead.carrier.server import Server, config

    listener = heard()
    server = Server(config(attached_app(lambda: listener), sweep=sweep, close_timeout=0.3), own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    raw = await dial(server.address[1])
    await until(lambda: listener.connection)
    server.should_exit = True
    first, payload = await raw.frame()
    assert (first, payload[:2]) == (FIN | CLOSE, (1012).to_bytes(2, "big"))
    await asyncio.wait_for(running, 5)
    assert listener.closed[0][0] == 1012


async def test_a_write_buffer_cannot_be_smaller_than_the_transports_mark() -> None:
    with pytest.raises(ValueError, match="max_buffered of 1000 bytes"):
        Terms(Sweep(), max_buffered=1000)


async def test_pings_from_a_peer_that_reads_nothing_overflow_too(
    heard: Any, attached_app: Any, serve: Any, until: Until
) -> None:
    """Pongs are writes like any other: a flood of pings cannot fill memory."""
    listener = heard()
    port = await serve(attached_app(lambda: listener), max_buffered=LIMIT)
    sock = await slow_reader(port)
    ping = b"\x89\xfd" + bytes(4) + bytes(125)
    loop = asyncio.get_running_loop()
    with sock:
        async with asyncio.timeout(20):
            while not listener.closed:
                try:
                    await asyncio.wait_for(loop.sock_sendall(sock, ping * 1000), 0.5)
                except (TimeoutError, ConnectionError):
                    await asyncio.sleep(0.05)
    assert listener.overflows == 1
    assert listener.closed[0][0] == 1013


async def test_logs_are_quiet_in_ordinary_life(
    gate: Gate, dial: Dial, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "fairlead.carrier"):
        for _ in range(3):
            raw = await dial(gate.port)
            await until(lambda: gate.all and gate.last.connection)
            raw.send(FIN | CLOSE, (1000).to_bytes(2, "big"))
            await raw.frames()
            await until(lambda: gate.last.closed)
    assert [r for r in caplog.records if r.name == "fairlead.carrier" and r.levelno > logging.DEBUG] == []
