"""Crowds that leave: their ends take turns, whoever stays does not wait behind them, and nothing sent is lost."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
from typing import cast

import pytest

from fairlead.carrier.epoll import poller as module
from fairlead.carrier.epoll.leaving_queue import LATE, SPARE
from fairlead.carrier.epoll.poller import BATCH

from support.carrier.poller_bench import PollerBench, received
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]


async def test_the_ends_of_many_connections_take_several_turns(bench: PollerBench) -> None:
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


async def test_ends_that_have_waited_for_long_take_a_whole_turn(bench: PollerBench) -> None:
    taken = [await bench.taken() for _ in range(40)]
    bench.step = module.TURN / 10
    for transport, _, _ in taken:
        transport.abort()
    await asyncio.sleep(0)
    assert sum(bool(recorder.events) for _, recorder, _ in taken) == 1
    bench.now += LATE
    await asyncio.sleep(0)
    assert 10 <= sum(bool(recorder.events) for _, recorder, _ in taken) <= 13


async def test_who_stays_does_not_wait_behind_a_crowd_that_leaves(bench: PollerBench) -> None:
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


async def put_aside(bench: PollerBench) -> None:
    """A turn has passed in which the poller was told of the crowd, and has read none of it."""
    bench.step = module.TURN
    async with asyncio.timeout(20):
        while not bench.poller._aside:
            await asyncio.sleep(0)
    bench.step = 0.0


async def test_a_crowd_whose_connections_were_reset_is_reported_once_more_at_most(bench: PollerBench) -> None:
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


async def test_all_that_a_crowd_has_sent_before_it_leaves_is_read(bench: PollerBench) -> None:
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


async def test_a_descriptor_that_was_put_aside_may_become_another_sockets(bench: PollerBench) -> None:
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


async def test_a_poller_that_closes_tells_all_protocols_in_the_next_turn(bench: PollerBench) -> None:
    taken = [await bench.taken() for _ in range(40)]
    bench.step = module.TURN
    bench.poller.close()
    await asyncio.sleep(0)
    assert all(recorder.events == ["lost"] for _, recorder, _ in taken)


async def test_a_protocol_that_fails_at_its_end_costs_no_other(
    bench: PollerBench, caplog: pytest.LogCaptureFixture
) -> None:
    taken = [await bench.taken() for _ in range(3)]

    def fail(exc: Exception | None) -> None:
        raise ValueError("of the test")

    taken[0][1].connection_lost = fail  # type: ignore[method-assign]  # a protocol with a defect
    for transport, _, _ in taken:
        transport.abort()
    await until(lambda: all(recorder.events == ["lost"] for _, recorder, _ in taken[1:]))
    assert "a connection could not be ended properly" in caplog.text
