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

    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving[task] = writer
        task.add_done_callback(ended)

    def ended(task: asyncio.Task[None]) -> None:
        del serving[task]
        if not task.cancelled():
            task.result()  # what a script has failed with is logged by the event loop

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task, writer in tuple(serving.items()):
            writer.transport.abort()  # also of a script that has not begun: nobody else would close it
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


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
