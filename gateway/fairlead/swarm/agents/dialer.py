"""Opens the connections of simulated agents, and closes what they share at the end.

Made by `agent_pool`. A `Poller` reads the sockets, without a transport of the event loop: that is what makes an idle
agent small. What follows a failed attempt is for the pool to decide.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from dataclasses import dataclass

from fairlead.carrier.client import ClientConnection, open_connection
from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.epoll.poller import AVAILABLE, Poller
from fairlead.carrier.listener import Connection, Listener
from fairlead.errors import ConnectionRefused
from fairlead.swarm.agents.visits import UncheckedTimerWheel
from fairlead.swarm.options import SwarmOptions
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK

DIAL_TIMEOUT = 10.0
"""Seconds, as in the SDK."""
MAX_RETRY_AFTER = 600.0
"""Seconds, as in the SDK."""
CLOSE_TIMEOUT = 25.0
"""Seconds for the closing handshakes of all agents at the end."""


@dataclass(frozen=True, slots=True)
class DialRefusal:
    """Why an attempt gave no connection."""

    reason: str
    """The HTTP status, or `unreachable`."""
    message: str
    wait_ms: float | None
    """The time until the next attempt, if the gateway has named one."""


class PoolDialer:
    def __init__(self, options: SwarmOptions) -> None:
        self.url = options.url
        """Of the next connection."""
        self._sources = options.sources
        self._headers = (("Authorization", f"Bearer {options.token}"),)
        self._timer_wheel = UncheckedTimerWheel()
        self._context = ConnectionContext(self._timer_wheel)
        self._poller = Poller() if AVAILABLE else None

    def start(self) -> None:
        self._timer_wheel.start()

    async def stop(self) -> None:
        """Wait for the closing handshakes that are under way, for `CLOSE_TIMEOUT` seconds at most."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while len(self._timer_wheel) and time.monotonic() < deadline:  # noqa: ASYNC110  # nothing announces the last one
            await asyncio.sleep(0.02)
        self._timer_wheel.stop()
        if self._poller is not None:
            self._poller.close()

    async def dial(self, listener: Listener, number: int, *, from_event_loop: bool) -> DialRefusal | None:
        """Connect `listener`, the agent `number`, which chooses its source address. `from_event_loop`: with a transport
        of the event loop, which alone allows another receive buffer.
        """
        try:
            await open_connection(
                self.url, listener, self._context, subprotocols=(SUBPROTOCOL_MSGPACK,),
                headers=self._headers, timeout=DIAL_TIMEOUT,
                local_address=self._sources[number % len(self._sources)] if self._sources else None,
                poller=None if from_event_loop else self._poller,
            )  # fmt: skip
        except ConnectionRefused as e:
            wait = None
            if e.retry_after is not None:
                # The header has only whole seconds, so agents that got the same number are spread over half that time
                # again.
                wait = min(e.retry_after, MAX_RETRY_AFTER) * 1000 * random.uniform(1.0, 1.5)
            message = e.message + (": " + " ".join(e.body[:200].decode(errors="replace").split()) if e.body else "")
            return DialRefusal(str(e.status) if e.status else "unreachable", message, wait)
        return None


def limit_receive_buffer(connection: Connection, size: int) -> None:
    """Limit what the system buffers and the agent has not read to about `size` bytes."""
    if isinstance(connection, ClientConnection):
        sock = connection.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
