"""An HTTP proxy that supports only CONNECT, with TLS or without.

For the tests of how an agent reaches its gateway. It notes the head of each request, and never looks into what it
carries.
"""

from __future__ import annotations

import asyncio
import ssl as tls


class Proxy:
    """An HTTP proxy that knows CONNECT. `refuse` is a status that it answers with instead."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.refuse = 0
        self.wants = ""
        """What Proxy-Authorization has to be."""
        self._server: asyncio.Server | None = None
        self._secure = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, ssl: tls.SSLContext | None = None) -> None:
        self._secure = ssl is not None
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=ssl)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def authority(self) -> str:
        assert self._server is not None
        return f"localhost:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http{'s' * self._secure}://{self.authority}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            method, target, _ = head.split(b"\r\n")[0].split(b" ")
            assert method == b"CONNECT"
            status = self.refuse
            if self.wants and f"Proxy-Authorization: {self.wants}\r\n".encode() not in head:
                status = 407
            if status:
                writer.write(f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
                return
            host, _, port = target.decode().rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, far_writer))
                    group.create_task(_copy(far_reader, writer))
            finally:
                far_writer.close()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("this way is over")  # and the other one with it
