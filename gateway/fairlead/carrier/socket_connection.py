"""The server's end of an open WebSocket on a bare socket: the reader of frames, the connection and the polled socket in
one object.

`link_acceptor` and `websocket_upgrade` make one after the handshake. An idle link takes some 130 bytes here, in one
object that the garbage collector does not know. There is no set of these connections either: the poller's table of
descriptors is where they are found.
"""

from __future__ import annotations

from typing import Any

from fairlead.carrier.connection import FramedConnection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.epoll.poller_socket import PolledSocket
from fairlead.carrier.listener import Listener
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.garbage_collector import untrack
from fairlead.wire.websocket import frames


class ConnectionPoller(Poller):
    """The poller of a server's connections. It stands for all of them in the server's set of open connections, and the
    `timer_wheel` visits them through it.
    """

    def __init__(self, timer_wheel: TimerWheel) -> None:
        super().__init__()
        self.connections = 0
        self.server: set[Any] = set()
        """The server's set of open connections."""
        self._timer_wheel = timer_wheel

    def entered(self) -> None:
        self.connections += 1
        if self.connections == 1:
            self.server.add(self)
            self._timer_wheel.watch_group(self)

    def left(self) -> None:
        self.connections -= 1
        if not self.connections:
            self.server.discard(self)
            self._timer_wheel.unwatch_group(self)

    def part(self, number: int, parts: int) -> list[SocketConnection]:
        return [one for one in self.owners(number, parts) if isinstance(one, SocketConnection)]

    def shutdown(self) -> None:
        """Close all connections with code 1012, as uvicorn asks each of the others to."""
        for one in self.part(0, 1):
            one.shutdown()


class SocketConnection(PolledSocket, FramedConnection):
    """On the socket `fd`, which `poller` watches already."""

    __slots__ = PolledSocket.SLOTS

    MASKED = True
    _encode = staticmethod(frames.encode)

    _poller: ConnectionPoller

    def __init__(
        self, fd: int, poller: ConnectionPoller, listener: Listener, context: ConnectionContext, *, deflate: bool
    ) -> None:
        FramedConnection.__init__(self, listener, context, deflate=deflate)
        self._attach(fd, poller)
        untrack(self)
        poller.assign(fd, self)
        poller.entered()

    def connection_lost(self, exc: Exception | None) -> None:
        self._poller.left()
        super().connection_lost(exc)

    def begin_visits(self) -> None:
        """Do nothing: the poller leads the timer wheel to each of its connections."""

    def end_visits(self) -> None:
        """Do nothing: a visit to a connection that has ended has no effect."""

    def _handshake_done(self) -> None:
        self.disconnect()
