"""A connection on an asyncio transport: the event loop's, or a `SocketTransport` (over TLS, and of a client).

It is the protocol of its transport. `server_connection` and `client` define the two roles.
"""

from __future__ import annotations

import asyncio

from fairlead.carrier.connection import FramedConnection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener


class TransportConnection(FramedConnection, asyncio.Protocol):
    """The transport's protocol must be this connection before `start` is called."""

    __slots__ = ("transport",)

    def __init__(
        self, transport: asyncio.Transport, listener: Listener, context: ConnectionContext, *, deflate: bool
    ) -> None:
        super().__init__(listener, context, deflate=deflate)
        self.transport = transport

    def begin_visits(self) -> None:
        self.context.timer_wheel.watch(self)

    def end_visits(self) -> None:
        self.context.timer_wheel.unwatch(self)

    def put(self, data: bytes) -> None:
        self.transport.write(data)

    def buffered(self) -> int:
        return self.transport.get_write_buffer_size()

    def is_reading(self) -> bool:
        return self.transport.is_reading()

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def go_on_reading(self) -> None:
        self.transport.resume_reading()

    def end_output(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def disconnect(self) -> None:
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def drop(self) -> None:
        self.transport.abort()
