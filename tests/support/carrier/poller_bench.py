"""A poller whose clock a test moves, with pairs of a transport on it and the peer's socket, and what they were told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.socket_transport import SocketTransport


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


class PollerBench:
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


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def received(peer: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    async with asyncio.timeout(20):
        while len(data) < size and (more := await loop.sock_recv(peer, 1 << 20)):
            data += more
    return data
