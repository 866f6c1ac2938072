"""A polled socket with the interface of an asyncio transport, for a protocol that does not own its socket.

`tls_transport` makes one for each connection over TLS, and `Poller.adopt` for a client's socket. A link without TLS has
none: its `SocketConnection` is the polled socket. The protocol cannot tell it from the transport of an event loop; the
reference to the protocol is dropped at the end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairlead.carrier.epoll.poller_socket import PolledSocket

if TYPE_CHECKING:
    from fairlead.carrier.epoll.poller import Poller


class SocketTransport(PolledSocket, asyncio.Transport):
    """The transport of one socket, whose descriptor it owns. It reads from the beginning; its creator sets the protocol
    before control returns to the event loop.
    """

    __slots__ = ("_protocol", "congested", *PolledSocket.SLOTS)

    def __init__(self, fd: int, poller: Poller) -> None:
        self._attach(fd, poller)
        self._protocol: asyncio.Protocol

    # Called by the protocol.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `default`: everything that an application may ask for was asked before the upgrade."""
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.put(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.end_output()

    def close(self) -> None:
        self.disconnect()

    def abort(self) -> None:
        self.drop()

    def pause_reading(self) -> None:
        self.stop_reading()

    def resume_reading(self) -> None:
        self.go_on_reading()

    # The events of the socket.

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        protocol = self._protocol
        del self._protocol  # the protocol refers to this transport
        protocol.connection_lost(exc)
