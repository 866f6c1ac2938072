"""A LinkGateway's author chooses the Redis server, which may be hostile: what it costs the operator is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead.errors import BusUnavailable
from fairlead_operator.inputs import node_metrics as module
from fairlead_operator.inputs.node_metrics import READ_BYTES, NodeMetricsReader

from support.scripted_server import scripted

Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(reply: Reply) -> AsyncIterator[str]:
    """A server that speaks enough of Redis to be taken for one, and answers with `reply`. Yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            if words[0] == b"TIME":
                now = str(int(time.time())).encode()
                writer.write(b"*2\r\n$%d\r\n%s\r\n$1\r\n0\r\n" % (len(now), now))
            elif words[0] in (b"ZRANGE", b"HGETALL"):
                await reply(words[0], writer)
            elif words[0] == b"PING":
                writer.write(b"+PONG\r\n")
            elif words[0] == b"ZREMRANGEBYSCORE":
                writer.write(b":0\r\n")
            else:
                writer.write(b"+OK\r\n")

    async with scripted(serve) as port:
        yield f"redis://127.0.0.1:{port}"


async def endless(command: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"$2000000000\r\n")
    while True:
        sent.append(1 << 16)
        writer.write(b"x" * (1 << 16))
        await writer.drain()


async def many(command: bytes, writer: asyncio.StreamWriter) -> None:
    """Each reply is within the limit, but there are many."""
    if command == b"ZRANGE":
        names = b"".join(b"$10\r\nn%06d#aa\r\n$13\r\n%d\r\n" % (n, time.time() * 1000) for n in range(1000))
        writer.write(b"*2000\r\n" + names)
        return
    sent.append(1 << 17)
    writer.write(b"*2\r\n$4\r\nnote\r\n$%d\r\n%s\r\n" % (1 << 17, b"x" * (1 << 17)))
    await writer.drain()


sent: list[int] = []


@pytest.mark.parametrize("reply", [endless, many])
async def test_reader_stops_at_its_limit_of_bytes(reply: Reply) -> None:
    sent.clear()
    async with server(reply) as url:
        rows = NodeMetricsReader(url)
        with pytest.raises(BusUnavailable, match=f"sent more than the {READ_BYTES} bytes"):
            await rows.read()
        # Beyond the limit are only the bytes in the buffers of both sockets, which the kernel bounds.
        assert sum(sent) < READ_BYTES + (32 << 20)
        await rows.aclose()


async def test_reader_stops_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT", 0.5)

    async def slow(command: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with server(slow) as url:
        rows = NodeMetricsReader(url)
        with pytest.raises(BusUnavailable, match=r"did not return the rows of all nodes within 0\.5 s"):
            await rows.read()
        await rows.aclose()
