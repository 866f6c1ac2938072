"""The server's end of an open WebSocket, which `websocket_upgrade` or `link_acceptor` makes after the handshake."""

from __future__ import annotations

import asyncio

from fairlead.carrier.connection import FramedConnection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener
from fairlead.wire.websocket import frames


class ServerConnection(FramedConnection):
    """The server's end of a connection. `connections` is the server's set of open connections; a connection removes
    itself from it when it is lost.
    """

    __slots__ = ("_connections",)

    MASKED = True

    def __init__(
        self,
        transport: asyncio.Transport,
        listener: Listener,
        context: ConnectionContext,
        connections: set[ServerConnection],
        *,
        deflate: bool = False,
    ) -> None:
        super().__init__(transport, listener, context, deflate=deflate)
        self._connections = connections
        connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def _encode(self, first: int, payload: bytes) -> bytes:
        return frames.encode(first, payload)

    def _handshake_done(self) -> None:
        self.transport.close()
