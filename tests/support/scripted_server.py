"""A TCP server that does what a test's script says, and the answer that opens a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fairlead.wire.websocket import handshake


@asynccontextmanager
async def scripted(
    script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A TCP server that does what the script says; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def accept(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, extra: bytes = b"", *, headers: bytes = b""
) -> None:
    """Answer an upgrade; `headers` are further header lines, `extra` is what follows the head at once."""
    head = await reader.readuntil(b"\r\n\r\n")
    key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + handshake.accept_key(key) + b"\r\n" + headers + b"\r\n" + extra
    )
