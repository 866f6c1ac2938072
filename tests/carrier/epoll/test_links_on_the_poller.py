"""Links whose sockets are on the poller: their first octets, their ends, and the descriptors that they leave."""

from __future__ import annotations

import asyncio
import select

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.socket_connection import SocketConnection
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.poller_bench import descriptors
from support.carrier.servers import AttachedApp, Dial, Serve
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]

BINARY, CLOSE = 0x82, 0x88


@pytest.mark.parametrize("how", ["close", "abort", "lost"])
async def test_links_that_come_and_go_leave_no_descriptor(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, how: str
) -> None:
    listeners: list[RecordingListener] = []

    def make() -> RecordingListener:
        listeners.append(RecordingListener(echo=True))
        return listeners[-1]

    port = await serve(attached_app(make))

    async def once() -> None:
        listener = RecordingListener()
        connection = await connect(f"ws://127.0.0.1:{port}/", listener, timer_wheel=timer_wheel)
        connection.send(b"x")
        await until(lambda: listener.messages)
        end = listeners[-1].open_connection
        {"close": lambda: end.close(4000), "abort": end.abort, "lost": connection.abort}[how]()
        await until(lambda: listener.closed and listeners[-1].closed)

    await once()
    await until(lambda: len(timer_wheel) == 0)
    before = descriptors()
    for _ in range(50):
        await once()
    await until(lambda: descriptors() <= before)


async def test_frames_and_the_end_that_come_before_the_answer_are_not_lost(
    serve: Serve, attached_app: AttachedApp, dial: Dial
) -> None:
    listener = RecordingListener(echo=True)
    raw = await dial(await serve(attached_app(lambda: listener)), upgrade=False)
    raw.write(raw.request() + raw.encode(BINARY, b"early") + raw.encode(CLOSE, (4001).to_bytes(2, "big") + b"bye"))
    raw.writer.write_eof()
    await until(lambda: listener.closed)
    assert (listener.messages, listener.closed) == ([b"early"], [(4001, "bye")])
    assert await raw.answer() == 101
    assert await raw.frame() == (BINARY, b"early")
    assert (await raw.expect_frame())[0] == CLOSE


async def test_a_peer_that_half_closes_and_does_not_read_is_dropped(
    serve: Serve, attached_app: AttachedApp, dial: Dial
) -> None:
    """Output waits for it, but no longer than for the answer to a close frame."""
    listener = RecordingListener()
    raw = await dial(await serve(attached_app(lambda: listener), max_buffered=64 << 20))
    await until(lambda: listener.connection)
    connection = listener.open_connection
    while not connection.congested:
        connection.send(bytes(1 << 20))
        await asyncio.sleep(0)
    raw.writer.write_eof()
    await until(lambda: listener.closed)
    assert listener.closed == [(1006, "")]


async def test_where_links_are(serve: Serve, attached_app: AttachedApp, dial: Dial, epoll: bool) -> None:
    listener = RecordingListener()
    await dial(await serve(attached_app(lambda: listener)))
    await until(lambda: listener.connection)
    assert isinstance(listener.connection, SocketConnection) is epoll
