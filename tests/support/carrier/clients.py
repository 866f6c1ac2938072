"""How the tests of the carrier's client open a connection: on a transport of the event loop, and on a poller."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from fairlead.carrier.client import ClientConnection, open_connection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import Poller
from fairlead.carrier.listener import Listener
from fairlead.carrier.timer_wheel import TimerWheel

Connect: TypeAlias = Callable[..., Coroutine[Any, Any, ClientConnection]]
"""`connect` of `fairlead.carrier.client`, with its parameters."""


class PolledClients:
    """Opens connections as `connect` does, on one poller."""

    def __init__(self) -> None:
        self.poller = Poller()

    async def __call__(
        self,
        url: str,
        listener: Listener,
        *,
        timer_wheel: TimerWheel,
        max_message: int = 1 << 20,
        max_buffered: int = 1 << 20,
        deflate: bool = False,
        **more: Any,
    ) -> ClientConnection:
        context = ConnectionContext(timer_wheel, max_message, max_buffered, deflate=deflate)
        return await open_connection(url, listener, context, poller=self.poller, **more)
