"""A server that has accepted very many links, one crowd after the other, holds what it held after the first ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.carrier.timer_wheel import TimerWheel

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import AttachedApp, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CROWD = 100
"""Links that are open at the same time."""
CROWDS = 40
"""24,000 accepts in the six forms of this test: three ways to accept, two event loops."""
SPARE = 2_000
"""Blocks that the interpreter may hold more in the end, for caches and for what the crowd before it has left: less than
one for two links."""
RESET = struct.pack("ii", 1, 0)
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"


def leave(peer: socket.socket) -> None:
    peer.close()


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()


def say_goodbye(peer: socket.socket) -> None:
    peer.sendall(CLOSE)
    peer.close()


ENDS: tuple[Callable[[socket.socket], None], ...] = (leave, reset, say_goodbye)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.timeout(600)  # it takes two seconds of CPU time, of which a busy machine gives little
async def test_descriptors_and_memory_stay_the_same(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel
) -> None:
    # A crowd connects first and sends its requests then, which takes longer than a head may take in other tests.
    port = await serve(attached_app(lambda: RecordingListener(echo=True)), request_timeout=300)
    loop = asyncio.get_running_loop()

    async def crowd(number: int) -> None:
        peers = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(CROWD)]
        for peer in peers:
            peer.setblocking(False)
            peer.sendall(RawClient.request() + RawClient.encode(0x82, b"one message"))
        for peer in peers:
            answer = b""
            async with asyncio.timeout(60):
                while not answer.endswith(b"one message"):
                    answer += (more := await loop.sock_recv(peer, 1 << 12))
                    assert more, "the server has closed the connection"
            assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert len(timer_wheel) == CROWD
        for position, peer in enumerate(peers):
            ENDS[(number + position) % len(ENDS)](peer)
        await until(lambda: len(timer_wheel) == 0, 60)

    for number in range(3):
        await crowd(number)
    gc.collect()
    files, blocks = descriptors(), sys.getallocatedblocks()
    for number in range(CROWDS):
        await crowd(number)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < SPARE
    await until(lambda: descriptors() <= files)
