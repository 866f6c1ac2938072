"""What is written to sockets on the poller: the first write of a turn, the rest, and peers that do not read."""

from __future__ import annotations

import asyncio
import itertools
import os
import select

import pytest

from fairlead.carrier.epoll import poller as module
from fairlead.carrier.epoll.poller_socket import HIGH_WATER

from support.carrier.poller_bench import PollerBench, received
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="epoll is Linux's"),
]


async def test_the_first_write_of_a_turn_is_at_once_and_the_rest_is_one_write(
    bench: PollerBench, monkeypatch: pytest.MonkeyPatch
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


async def test_writes_to_many_take_several_turns(bench: PollerBench) -> None:
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


async def test_a_peer_that_does_not_read_pauses_and_resumes_writing(bench: PollerBench) -> None:
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


async def test_close_writes_what_waits_and_abort_does_not(bench: PollerBench) -> None:
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


async def test_a_half_closed_socket_is_still_read(bench: PollerBench) -> None:
    transport, recorder, peer = await bench.taken()
    transport.write(b"the end")
    transport.write_eof()
    transport.write(b"dropped")
    assert await received(peer, 100) == b"the end"
    peer.send(b"still here")
    await until(lambda: recorder.received == b"still here")
    peer.close()
    await until(lambda: recorder.events == ["lost"])
