"""Sockets on the poller: what leaves a transport and what stays, turns, and faults that end one connection alone."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import select
from typing import cast

import pytest

from fairlead.carrier.epoll import poller as module
from fairlead.carrier.epoll.poller import HOT
from fairlead.carrier.epoll.socket_transport import SocketTransport

from support.carrier.poller_bench import PollerBench, ProtocolRecorder, descriptors, received
from support.carrier.servers import Dial
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]


async def test_a_connection_leaves_its_transport_and_its_peer_notices_nothing(bench: PollerBench) -> None:
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


async def test_what_a_peer_sends_before_it_leaves_is_read_first(bench: PollerBench) -> None:
    before, peer = await bench.transport()
    peer.send(b"the last words")
    peer.close()
    transport = bench.take_over(before)
    recorder = ProtocolRecorder(bench.served)
    transport.set_protocol(recorder)
    await until(lambda: recorder.events)
    assert (recorder.received, recorder.events) == (b"the last words", ["lost"])


async def test_a_transport_with_unwritten_data_is_not_left(bench: PollerBench) -> None:
    before, peer = await bench.transport()
    data = bytes(8 << 20)
    before.write(data)
    assert bench.poller.take_over(before) is None
    assert len(await received(peer, len(data))) == len(data)
    assert not before.is_closing()
    before.close()
    assert bench.poller.take_over(before) is None, "it is closing"


async def test_without_free_descriptors_a_connection_stays(bench: PollerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    before, peer = await bench.transport()
    monkeypatch.setattr(os, "dup", fail)
    assert bench.poller.take_over(before) is None
    before.write(b"here")
    assert await received(peer, 4) == b"here"
    before.close()


async def test_many_ready_sockets_are_served_over_several_turns(bench: PollerBench) -> None:
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


async def test_one_busy_socket_does_not_keep_others_from_being_read(bench: PollerBench) -> None:
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


async def test_a_reset_is_an_error_and_ends_only_its_connection(dial: Dial, bench: PollerBench) -> None:
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
    bench: PollerBench, caplog: pytest.LogCaptureFixture
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
    bench = PollerBench()
    ends = [await bench.taken() for _ in range(5)]
    bench.poller.close()
    for _, recorder, peer in ends:
        await until(lambda: recorder.events == ["lost"])  # noqa: B023  # awaited at once
        assert await received(peer, 1) == b""
        peer.close()
    await until(lambda: descriptors() <= before)
