"""The server's end of an open WebSocket on a transport, which `websocket_upgrade` or `tls_acceptor` makes after the
handshake.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener
from fairlead.carrier.transport_connection import TransportConnection
from fairlead.wire.websocket import frames


class ServerConnection(TransportConnection):
    """`connections` is the server's set of open connections; a connection removes itself from it when it is lost."""

    __slots__ = ("_connections",)

    MASKED = True
    _encode = staticmethod(frames.encode)

    def __init__(
        self,
        transport: asyncio.Transport,
        listener: Listener,
        context: ConnectionContext,
        connections: set[Any],
        *,
        deflate: bool = False,
    ) -> None:
        super().__init__(transport, listener, context, deflate=deflate)
        self._connections = connections
        connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def _handshake_done(self) -> None:
        self.disconnect()
