"""A network whose lines end TLS for whoever speaks it, and carry anything else as it is.

The server program of the tests speaks no TLS. So nodes connect to the announced ports with TLS, as their URL says, and
replicas, Sentinels and the other servers of a Cluster connect to the same ports without it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from support.valkey.network import Network, NetworkLine

HANDSHAKE = b"\x16"
"""The first octet of a connection with TLS: a handshake record (RFC 8446 §5.1)."""


class TlsLine(NetworkLine):
    def __init__(self, target: int, certificate: Path) -> None:
        super().__init__(target)
        self._context = tls.SSLContext(tls.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self.handshakes = 0
        self._listener: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept_next, self._listener)

    async def stop(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        tasks = tuple(self._opening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().stop()

    def _accept_next(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # who came has left
        accepted.setblocking(False)
        task = asyncio.create_task(self._open(accepted))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, accepted))

    def _opened(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """Close the socket of a task that was cancelled, perhaps before its first step."""
        self._opening.discard(task)
        if task.cancelled():
            accepted.close()

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await _readable(accepted)
            secure = accepted.recv(1, socket.MSG_PEEK) == HANDSHAKE
            self.handshakes += secure
            await asyncio.get_running_loop().connect_accepted_socket(
                _relay(self._accept), accepted, ssl=self._context if secure else None
            )
        except OSError:
            accepted.close()  # who has connected does not trust the certificate, or has left

    async def _deliver(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, source: str
    ) -> None:
        try:
            await super()._deliver(pieces, writer, source)
        finally:
            if writer.get_extra_info("ssl_object") is not None:
                writer.close()  # with TLS, one direction cannot end alone


class TlsNetwork(Network):
    def __init__(self, certificate: Path) -> None:
        """`certificate` has the key too."""
        super().__init__()
        self._certificate = certificate

    def _new_line(self, port: int) -> NetworkLine:
        return TlsLine(port, self._certificate)


async def _readable(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(accepted.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(accepted.fileno())


def _relay(
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> Callable[[], asyncio.Protocol]:
    return lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), accept)
