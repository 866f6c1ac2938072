"""Sockets on the poller: what leaves a transport and what stays, turns, writes of one turn, ends, and descriptors."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import pytest_asyncio

from fairlead.carrier.client import connect
from fairlead.carrier.epoll import poller as module
from fairlead.carrier.epoll.leaving_queue import LATE, SPARE
from fairlead.carrier.epoll.poller import BATCH, HOT, Poller
from fairlead.carrier.epoll.poller_socket import HIGH_WATER
from fairlead.carrier.epoll.socket_transport import SocketTransport
from fairlead.carrier.socket_connection import SocketConnection
from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Dial, Serve
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]

BINARY, CLOSE = 0x82, 0x88


class ProtocolRecorder(asyncio.Protocol):
    """Records what its transport tells it."""

    def __init__(self, served: list[ProtocolRecorder]) -> None:
        self.received = b""
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self._served = served
        self.heard: Callable[[], object] = lambda: None

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._served.append(self)
        self.heard()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)


class Bench:
    """A poller whose clock a test moves, and pairs of a transport on it and the peer's socket."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0
        """Seconds that pass between two looks at the clock."""
        self.poller = Poller(self._clock)
        self.served: list[ProtocolRecorder] = []
        self.peers: list[socket.socket] = []

    def _clock(self) -> float:
        self.now += self.step
        return self.now

    async def transport(self) -> tuple[asyncio.Transport, socket.socket]:
        """A transport of the event loop, and its peer."""
        ours, peer = socket.socketpair()
        for one in (ours, peer):
            one.setblocking(False)
        self.peers.append(peer)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, ours)
        return transport, peer

    def take_over(self, before: asyncio.Transport) -> SocketTransport:
        fd = self.poller.take_over(before)
        assert fd is not None
        transport = SocketTransport(fd, self.poller)
        self.poller.assign(fd, transport)
        return transport

    async def taken(self) -> tuple[SocketTransport, ProtocolRecorder, socket.socket]:
        """A transport on the poller, its protocol and its peer."""
        before, peer = await self.transport()
        transport = self.take_over(before)
        recorder = ProtocolRecorder(self.served)
        recorder.transport = transport
        transport.set_protocol(recorder)
        return transport, recorder, peer


@pytest_asyncio.fixture(loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.poller.close()
    for peer in bench.peers:
        peer.close()
    await asyncio.sleep(0)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def received(peer: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(20):
        while len(data) < size and (more := await loop.sock_recv(peer, 1 << 20)):
            data += more
    return data


async def test_a_connection_leaves_its_transport_and_its_peer_notices_nothing(bench: Bench) -> None:
    before, peer = await bench.transport()
    peer.send(b"sent before")
    transport = bench.take_over(before)
    recorder = ProtocolRecorder(bench.served)
    transport.set_protocol(recorder)
    await until(lambda: recorder.received == b"sent before")
    await until(before.is_closing)
    for _ in range(10):  # turns of the loop in which the old transport closes its descriptor
        await asyncio.sleep(0)
    transport.write(b"answer")
    assert await received(peer, 6) == b"answer"
    peer.send(b", sent after")
    await until(lambda: recorder.received == b"sent before, sent after")
    assert recorder.events == []
    assert len(bench.poller) == 1


async def test_what_a_peer_sends_before_it_leaves_is_read_first(bench: Bench) -> None:
    before, peer = await bench.transport()
    peer.send(b"the last words")
    peer.close()
    transport = bench.take_over(before)
    recorder = ProtocolRecorder(bench.served)
    transport.set_protocol(recorder)
    await until(lambda: recorder.events)
    assert (recorder.received, recorder.events) == (b"the last words", ["lost"])


async def test_a_transport_with_unwritten_data_is_not_left(bench: Bench) -> None:
    before, peer = await bench.transport()
    data = bytes(8 << 20)
    before.write(data)
    assert bench.poller.take_over(before) is None
    assert len(await received(peer, len(data))) == len(data)
    assert not before.is_closing()
    before.close()
    assert bench.poller.take_over(before) is None, "it is closing"


async def test_without_free_descriptors_a_connection_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    before, peer = await bench.transport()
    monkeypatch.setattr(os, "dup", fail)
    assert bench.poller.take_over(before) is None
    before.write(b"here")
    assert await received(peer, 4) == b"here"
    before.close()


async def test_many_ready_sockets_are_served_over_several_turns(bench: Bench) -> None:
    """Each look at the clock takes half of a turn: a turn serves three, and the next goes on with those that wait. One
    that is always ready does not come before them again."""
    ends = [await bench.taken() for _ in range(20)]
    _, greedy, feeder = ends[0]
    greedy.heard = lambda: feeder.send(b"x")
    bench.step = module.TURN / 2
    for _, _, peer in ends:
        peer.send(b"x")
    counts = [0]
    async with asyncio.timeout(20):
        while len(bench.served) < 20:
            await asyncio.sleep(0)
            counts.append(len(bench.served))
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 3
    assert len(set(bench.served[:20])) == 20
    await until(lambda: bench.served.count(greedy) >= 2)
    greedy.heard = lambda: None


async def test_one_busy_socket_does_not_keep_others_from_being_read(bench: Bench) -> None:
    _, busy, peer = await bench.taken()
    _, other, quiet = await bench.taken()

    async def flood() -> None:
        while True:
            await asyncio.get_running_loop().sock_sendall(peer, bytes(512 << 10))

    flooding = asyncio.create_task(flood())
    await until(lambda: bench.served.count(busy) > 2 * HOT)
    before = len(bench.served)
    quiet.send(b"x")
    await until(lambda: other.received)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    assert bench.served.index(other) - before <= 4


async def talk(peer: socket.socket, recorder: ProtocolRecorder, messages: int = 2 * HOT) -> None:
    """Send messages, each when the one before was read."""
    for _ in range(messages):
        size = len(recorder.received)
        peer.send(b"x")
        while len(recorder.received) == size:
            await asyncio.sleep(0)


async def test_the_one_link_that_is_talked_to_is_watched_by_the_event_loop(bench: Bench) -> None:
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


async def test_a_socket_that_the_event_loop_watches_is_paused_filled_and_closed(bench: Bench) -> None:
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


async def test_a_reset_that_follows_data_is_noticed_by_a_socket_that_the_event_loop_watches(bench: Bench) -> None:
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch
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


async def test_the_first_write_of_a_turn_is_at_once_and_the_rest_is_one_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, _, peer = await bench.taken()
    writes: list[int] = []
    write = os.write

    def counted(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counted)
    for _ in range(100):
        transport.write(b"0123456789")
    assert (writes, transport.get_write_buffer_size()) == ([10], 990)
    assert await received(peer, 1000) == b"0123456789" * 100
    monkeypatch.undo()
    assert writes == [10, 990]


async def test_writes_to_many_take_several_turns(bench: Bench) -> None:
    ends = [await bench.taken() for _ in range(10)]
    bench.step = module.TURN
    for transport, _, _ in ends:
        transport.write(b"x")
    waiting = [10]
    async with asyncio.timeout(20):
        while waiting[-1]:
            await asyncio.sleep(0)
            waiting.append(sum(bool(transport.get_write_buffer_size()) for transport, _, _ in ends))
    assert max(before - after for before, after in itertools.pairwise(waiting)) <= 2
    assert [await received(peer, 1) for _, _, peer in ends] == [b"x"] * 10


async def test_a_peer_that_does_not_read_pauses_and_resumes_writing(bench: Bench) -> None:
    transport, recorder, peer = await bench.taken()
    data = os.urandom(HIGH_WATER // 2)
    sent = 0
    while not recorder.events:
        transport.write(data)
        sent += 1
    assert transport.get_write_buffer_size() > HIGH_WATER
    transport.pause_reading()  # writing goes on
    assert await received(peer, sent * len(data)) == data * sent
    await until(lambda: recorder.events == ["pause", "resume"])
    assert transport.get_write_buffer_size() == 0


async def test_close_writes_what_waits_and_abort_does_not(bench: Bench) -> None:
    (closed, _, one), (aborted, recorder, other) = await bench.taken(), await bench.taken()
    size = 0
    while closed.get_write_buffer_size() <= HIGH_WATER:
        closed.write(bytes(100_000))
        size += 100_000
    closed.close()
    assert not closed.is_reading()
    aborted.write(b"never written")
    aborted.abort()
    aborted.abort()
    assert recorder.events == [], "nobody is called before the call returns"
    assert len(await received(one, size + 1)) == size
    assert await received(other, 1) == b""
    await until(lambda: recorder.events == ["lost"])
    await until(lambda: len(bench.poller) == 0)


async def test_a_half_closed_socket_is_still_read(bench: Bench) -> None:
    transport, recorder, peer = await bench.taken()
    transport.write(b"the end")
    transport.write_eof()
    transport.write(b"dropped")
    assert await received(peer, 100) == b"the end"
    peer.send(b"still here")
    await until(lambda: recorder.received == b"still here")
    peer.close()
    await until(lambda: recorder.events == ["lost"])


async def test_a_reset_is_an_error_and_ends_only_its_connection(dial: Dial, bench: Bench) -> None:
    (_, lost, peer), (_, kept, other) = await bench.taken(), await bench.taken()
    transport = cast(SocketTransport, lost.transport)
    transport.pause_reading()
    peer.close()
    while not lost.events:
        transport.write(bytes(1000))
        await asyncio.sleep(0)
    assert lost.events == ["BrokenPipeError"]
    other.send(b"x")
    await until(lambda: kept.received)


async def test_a_protocol_that_fails_loses_its_connection_and_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (_, broken, peer), (_, sound, other) = await bench.taken(), await bench.taken()

    def fail() -> None:
        raise RuntimeError("on purpose")

    broken.heard = fail
    peer.send(b"x")
    other.send(b"y")
    await until(lambda: broken.events == ["lost"] and sound.received == b"y")
    assert "a connection failed and is dropped" in caplog.text


async def test_a_closed_poller_holds_no_descriptor() -> None:
    before = descriptors()
    bench = Bench()
    ends = [await bench.taken() for _ in range(5)]
    bench.poller.close()
    for _, recorder, peer in ends:
        await until(lambda: recorder.events == ["lost"])  # noqa: B023  # awaited at once
        assert await received(peer, 1) == b""
        peer.close()
    await until(lambda: descriptors() <= before)


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


async def test_the_ends_of_many_connections_take_several_turns(bench: Bench) -> None:
    taken = [await bench.taken() for _ in range(40)]
    bench.step = SPARE / 3  # each end takes a third of what a turn may take
    for transport, _, _ in taken:
        transport.abort()
    assert not any(recorder.events for _, recorder, _ in taken), "no call comes before abort returns"
    ended = [0]
    while ended[-1] < len(taken):
        await asyncio.sleep(0)
        ended.append(sum(bool(recorder.events) for _, recorder, _ in taken))
        assert len(ended) < 100
    grown = [after - before for before, after in itertools.pairwise(ended)]
    assert max(grown) <= 4
    assert all(recorder.events == ["lost"] for _, recorder, _ in taken)


async def test_ends_that_have_waited_for_long_take_a_whole_turn(bench: Bench) -> None:
    taken = [await bench.taken() for _ in range(40)]
    bench.step = module.TURN / 10
    for transport, _, _ in taken:
        transport.abort()
    await asyncio.sleep(0)
    assert sum(bool(recorder.events) for _, recorder, _ in taken) == 1
    bench.now += LATE
    await asyncio.sleep(0)
    assert 10 <= sum(bool(recorder.events) for _, recorder, _ in taken) <= 13


async def test_who_stays_does_not_wait_behind_a_crowd_that_leaves(bench: Bench) -> None:
    """More sockets than the kernel reports at once are closed by their peers, and then one more has sent something."""
    crowd = [await bench.taken() for _ in range(BATCH + 50)]
    _, staying, peer = await bench.taken()
    order: list[str] = []
    staying.heard = lambda: order.append("data")
    for _, recorder, leaver in crowd:
        recorder.eof_received = lambda: order.append("end")  # type: ignore[method-assign]
        leaver.close()
    peer.send(b"x")
    await until(lambda: len(order) == len(crowd) + 1)
    assert order.index("data") == 0
    await until(lambda: all(recorder.events == ["lost"] for _, recorder, _ in crowd))


async def put_aside(bench: Bench) -> None:
    """A turn has passed in which the poller was told of the crowd, and has read none of it."""
    bench.step = module.TURN
    async with asyncio.timeout(20):
        while not bench.poller._aside:
            await asyncio.sleep(0)
    bench.step = 0.0


async def test_a_crowd_whose_connections_were_reset_is_reported_once_more_at_most(bench: Bench) -> None:
    """Each socket ends in its turn, and in between the kernel is asked for others and has none."""
    crowd = [await bench.taken() for _ in range(BATCH)]
    for transport, _, _ in crowd:
        transport.write(b"never read")
    for _, _, peer in crowd:
        assert await asyncio.get_running_loop().sock_recv(peer, 5) == b"never"
    for _, _, peer in crowd:
        peer.close()  # with unread data, which resets the connection
    bench.step = SPARE
    polls: list[int] = []
    real = bench.poller._epoll
    assert real is not None
    bench.poller._epoll = cast("select.epoll", Spied(real, polls))
    async with asyncio.timeout(20):
        while not all(recorder.events for _, recorder, _ in crowd):
            await asyncio.sleep(0)
    assert sum(polls) <= 2 * BATCH
    assert not bench.poller._aside


class Spied:
    """An epoll that counts what it reports."""

    def __init__(self, real: select.epoll, polls: list[int]) -> None:
        self._real = real
        self._polls = polls

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        found = self._real.poll(timeout, most)
        self._polls.append(len(found))
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def test_all_that_a_crowd_has_sent_before_it_leaves_is_read(bench: Bench) -> None:
    """Also what takes several reads, and what takes a socket that pauses its reading or is written to meanwhile."""
    size = 3 * module.MOST_READ
    crowd = [await bench.taken() for _ in range(BATCH)]
    loop = asyncio.get_running_loop()
    for _, _, peer in crowd[:3]:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
        await loop.sock_sendall(peer, bytes(size))
    for _, _, peer in crowd:
        peer.shutdown(socket.SHUT_WR)
    await put_aside(bench)
    crowd[0][0].pause_reading()
    crowd[1][0].write(b"answer")
    assert await received(crowd[1][2], 6) == b"answer"
    await until(lambda: all(recorder.events == ["lost"] for _, recorder, _ in crowd[1:]))
    assert [len(recorder.received) for _, recorder, _ in crowd[1:3]] == [size, size]
    assert crowd[0][1].events == []
    crowd[0][0].resume_reading()
    await until(lambda: crowd[0][1].events == ["lost"])
    assert len(crowd[0][1].received) == size


async def test_a_descriptor_that_was_put_aside_may_become_another_sockets(bench: Bench) -> None:
    crowd = [await bench.taken() for _ in range(BATCH)]
    for _, _, peer in crowd:
        peer.shutdown(socket.SHUT_WR)
    await put_aside(bench)
    for transport, _, _ in crowd:
        transport.abort()
    others = [await bench.taken() for _ in range(BATCH)]
    for _, _, peer in others:
        peer.send(b"x")
    await until(lambda: all(recorder.received == b"x" for _, recorder, _ in others))
    assert all(recorder.events == ["lost"] for _, recorder, _ in crowd)
    assert not any(recorder.events for _, recorder, _ in others)


async def test_a_poller_that_closes_tells_all_protocols_in_the_next_turn(bench: Bench) -> None:
    taken = [await bench.taken() for _ in range(40)]
    bench.step = module.TURN
    bench.poller.close()
    await asyncio.sleep(0)
    assert all(recorder.events == ["lost"] for _, recorder, _ in taken)


async def test_a_protocol_that_fails_at_its_end_costs_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    taken = [await bench.taken() for _ in range(3)]

    def fail(exc: Exception | None) -> None:
        raise ValueError("of the test")

    taken[0][1].connection_lost = fail  # type: ignore[method-assign]  # a protocol with a defect
    for transport, _, _ in taken:
        transport.abort()
    await until(lambda: all(recorder.events == ["lost"] for _, recorder, _ in taken[1:]))
    assert "a connection could not be ended properly" in caplog.text
