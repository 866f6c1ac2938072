"""What all connections of one server or of one client process share: the timer wheel, limits and the read scheduler.

Every connection has a reference to one `ConnectionContext`, so that an idle connection stores none of it by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.carrier.epoll.poller_socket import HIGH_WATER
from fairlead.carrier.listener import Connection
from fairlead.carrier.reading.scheduler import ReadScheduler
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.wire.websocket.frames import SHORT


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The shared parts. Sizes are in bytes, times in seconds. Without a `read_scheduler`, all incoming data is read at
    once. Raises ValueError for a `max_buffered` below `HIGH_WATER` or a `max_message` below `SHORT`.
    """

    timer_wheel: TimerWheel
    max_message: int = 1 << 20
    max_buffered: int = 1 << 20
    close_timeout: float = 5.0  # a live peer answers within its round trip; 5 s suffice on a bad mobile link
    deflate: bool = False
    read_scheduler: ReadScheduler | None = None
    slow: set[Connection] | None = None
    """The connections that are congested, because their peers read more slowly than data is sent to them. None if
    nobody needs the set: a client has one context per connection and does not use it."""

    def note(self, connection: Connection, congested: bool) -> None:
        """Add `connection` to the slow connections if it is `congested`, or else remove it."""
        if self.slow is None:
            return
        if congested:
            self.slow.add(connection)
        else:
            self.slow.discard(connection)

    def __post_init__(self) -> None:
        if self.max_buffered < HIGH_WATER:
            raise ValueError(
                f"max_buffered of {self.max_buffered} bytes is too small: expected at least {HIGH_WATER}, the "
                "high-water mark of the transports"
            )
        if self.max_message < SHORT:
            raise ValueError(f"max_message of {self.max_message} bytes is too small: expected at least {SHORT}")
