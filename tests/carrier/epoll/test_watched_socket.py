"""The one link that is talked to, whose socket the event loop watches in place of the poller."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from types import SimpleNamespace

import pytest

from fairlead.carrier.epoll.poller import HOT

from support.carrier.poller_bench import PollerBench, ProtocolRecorder, descriptors, received
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]


async def talk(peer: socket.socket, recorder: ProtocolRecorder, messages: int = 2 * HOT) -> None:
    """Send messages, each when the one before was read."""
    for _ in range(messages):
        size = len(recorder.received)
        peer.send(b"x")
        while len(recorder.received) == size:
            await asyncio.sleep(0)


async def test_the_one_link_that_is_talked_to_is_watched_by_the_event_loop(bench: PollerBench) -> None:
    first, one, peer = await bench.taken()
    second, other, second_peer = await bench.taken()
    await talk(peer, one)
    assert bench.poller.hot is first
    await talk(second_peer, other)
    assert bench.poller.hot is second
    for _ in range(2 * HOT):  # two that are talked to in turn do not take each other's place
        await talk(peer, one, 1)
        await talk(second_peer, other, 1)
    assert bench.poller.hot is second
    await talk(peer, one, 1)
    assert one.events == other.events == []


async def test_a_socket_that_the_event_loop_watches_is_paused_filled_and_closed(bench: PollerBench) -> None:
    transport, recorder, peer = await bench.taken()
    await talk(peer, recorder)
    transport.pause_reading()
    peer.send(b"later")
    await asyncio.sleep(0.05)  # nothing tells of what is not read
    assert not recorder.received.endswith(b"later")
    transport.resume_reading()
    await until(lambda: recorder.received.endswith(b"later"))
    await talk(peer, recorder)
    assert bench.poller.hot is transport
    transport.write(bytes(8 << 20))
    await until(lambda: "pause" in recorder.events)
    await received(peer, 8 << 20)
    await until(lambda: "resume" in recorder.events)
    await talk(peer, recorder)
    assert bench.poller.hot is transport
    before = descriptors()
    transport.abort()
    await until(lambda: "lost" in recorder.events)
    assert descriptors() == before - 1
    _, another, third_peer = await bench.taken()  # with the same number
    await talk(third_peer, another, 3)
    assert bench.poller.hot is None


async def test_a_reset_that_follows_data_is_noticed_by_a_socket_that_the_event_loop_watches(bench: PollerBench) -> None:
    """libuv ends its watch at the first error of a socket, when what arrived before the error is still unread."""
    transport, recorder, peer = await bench.taken()
    await talk(peer, recorder)
    assert bench.poller.hot is transport
    transport.write(b"closing with unread data is a reset")
    await until(lambda: not transport.get_write_buffer_size())
    peer.send(b"the last words")
    peer.close()
    await until(lambda: recorder.events)
    assert (recorder.received[-14:], recorder.events) == (b"the last words", ["ConnectionResetError"])
    assert bench.poller.hot is None


async def test_an_epoll_that_the_event_loop_cannot_watch_is_not_kept(
    bench: PollerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, *_: object) -> None:
        raise OSError(errno.ENOSPC, "the user has too many watches")

    before, peer = await bench.transport()
    files = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(add_reader=fail))
        assert bench.poller.take_over(before) is None
    assert descriptors() == files
    transport = bench.take_over(before)
    recorder = ProtocolRecorder(bench.served)
    transport.set_protocol(recorder)
    peer.send(b"read all the same")
    await until(lambda: recorder.received == b"read all the same")


async def test_a_socket_stays_on_the_epoll_when_the_event_loop_cannot_watch_it(
    bench: PollerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, *_: object) -> None:
        raise OSError(errno.ENOSPC, "the user has too many watches")

    _, recorder, peer = await bench.taken()
    # The event loop itself cannot be patched: uvloop's is not written in Python.
    monkeypatch.setattr(bench.poller, "_loop", SimpleNamespace(add_reader=fail, call_soon=lambda *_: None))
    await talk(peer, recorder)
    monkeypatch.undo()
    assert bench.poller.hot is None
    await talk(peer, recorder, 1)
    assert recorder.events == []
