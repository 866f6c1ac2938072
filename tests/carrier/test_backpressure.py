"""Peers that do not read and peers that are not read: congestion, overflow and recovery are the same on every
carrier."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Connection
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import ListenerFactory, RecordingListener
from support.carrier.servers import AttachedApp, Dial, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


FIN = 0x80
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9


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
        head += await asyncio.wait_for(loop.sock_recv(sock, 1), 20)
    return sock


async def drain(sock: socket.socket, enough: int = 1 << 40, seconds: float = 20.0) -> int:
    """Read until the other end closes, or enough has come; returns how much came."""
    loop, total = asyncio.get_running_loop(), 0
    async with asyncio.timeout(seconds):
        try:
            while total < enough and (data := await loop.sock_recv(sock, 1 << 20)):
                total += len(data)
        except ConnectionResetError:
            pass
    return total


async def test_a_slow_reader_overflows_and_is_closed(listeners: ListenerFactory) -> None:
    sock = await slow_reader(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listener, connection = listeners.last, listeners.last.open_connection
    message, sent = bytes(16 << 10), 0
    async with asyncio.timeout(20):
        while not connection.closing:
            connection.send(message)
            sent += len(message)
            await asyncio.sleep(0)
    assert listener.overflows == 1
    assert connection.congested
    assert connection.buffered() <= listeners.limit + 2 * len(message) + 1024, "bounded, whatever is sent"
    await until(lambda: listener.closed)
    assert listener.closed[0][0] == 1013
    with sock:
        assert await drain(sock) < sent


async def test_a_listener_may_choose_how_an_overflow_ends(listeners: ListenerFactory) -> None:
    class Strict(RecordingListener):
        def on_overflow(self, connection: Connection) -> None:
            super().on_overflow(connection)
            connection.close(4408, "slow reader")

    listeners.make = Strict
    sock = await slow_reader(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listener, connection = listeners.last, listeners.last.open_connection
    async with asyncio.timeout(20):
        while not connection.closing:
            connection.send(bytes(16 << 10))
            await asyncio.sleep(0)
    await until(lambda: listener.closed)
    assert listener.closed == [(4408, "slow reader")]
    sock.close()


async def test_a_listener_is_told_when_writing_is_congested_and_when_it_is_not(listeners: ListenerFactory) -> None:
    """A sender that stops at `congested` and goes on at `on_writable` never overflows and loses nothing."""
    sock = await slow_reader(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listener, connection = listeners.last, listeners.last.open_connection
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


async def test_one_message_may_be_larger_than_the_buffer(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listeners.last.open_connection.send(bytes(5 * listeners.limit))
    assert await raw.frame() == (FIN | BINARY, bytes(5 * listeners.limit))
    assert listeners.last.overflows == 0


async def test_paused_reading_makes_the_peer_wait(listeners: ListenerFactory, dial: Dial) -> None:
    raw = await dial(listeners.port)
    await until(lambda: listeners.all and listeners.last.connection)
    listener = listeners.last
    listener.open_connection.pause_reading()
    listener.open_connection.pause_reading()
    frame = raw.encode(FIN | BINARY, bytes(64 << 10), bytes(4))
    for _ in range(400):
        raw.write(frame)
    with pytest.raises(TimeoutError):  # 25 MiB fit into no socket buffers
        await asyncio.wait_for(raw.writer.drain(), 0.3)
    assert len(listener.messages) < 200
    listener.open_connection.resume_reading()
    listener.open_connection.resume_reading()
    await asyncio.wait_for(raw.writer.drain(), 20)
    await until(lambda: len(listener.messages) == 400, 20)


async def test_a_write_buffer_cannot_be_smaller_than_the_transports_mark() -> None:
    with pytest.raises(ValueError, match="max_buffered of 1000 bytes"):
        ConnectionContext(TimerWheel(), max_buffered=1000)


async def test_the_largest_message_cannot_be_smaller_than_what_the_shortest_frame_holds() -> None:
    """The reader compares no frame of the shortest form with it."""
    ConnectionContext(TimerWheel(), max_message=125)
    with pytest.raises(ValueError, match="max_message of 124 bytes"):
        ConnectionContext(TimerWheel(), max_message=124)


async def test_answers_to_pings_of_a_peer_that_does_not_read_overflow_too(
    attached_app: AttachedApp, serve: Serve
) -> None:
    """Pongs are writes like any other: a flood of pings cannot fill memory."""
    listener = RecordingListener()
    port = await serve(attached_app(lambda: listener), max_buffered=256 << 10)
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
