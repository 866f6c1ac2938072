"""The interface of the carrier: the events that a connection reports, and the operations that it offers.

A `Listener` receives the events. There is usually one listener per connection (a gateway session, an SDK session, a
benchmark client). The connection calls it synchronously on the event loop, so a listener must not block. The listener
acts on a `Connection`, which is a `FramedConnection` on a transport or a bare socket, or an `AsgiConnection` on a
foreign ASGI server. If a listener raises an exception, the connection logs it and closes with code 1011.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Connection(Protocol):
    """One open WebSocket, as its listener uses it."""

    @property
    def closing(self) -> bool:
        """True once a close frame was sent or received, or the connection was lost. Messages sent after that are
        dropped.
        """
        ...

    @property
    def congested(self) -> bool:
        """True while the write buffer is above its high-water mark; `on_writable` is called when it has drained."""
        ...

    @property
    def silent_periods(self) -> int:
        """The number of whole silence periods since the last byte arrived."""
        ...

    def send(self, message: bytes | str) -> None:
        """Send one message: bytes as a binary message, str as a text message. Never blocks; see `on_overflow`."""
        ...

    def write(self, frame: bytes) -> None:
        """Write one frame that is already encoded for this role, so that a broadcast is encoded only once."""
        ...

    def ping(self, payload: bytes = b"") -> None: ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake. The peer has 5 s to answer; `on_close` then reports this code."""
        ...

    def abort(self) -> None:
        """Drop the connection immediately, and discard all data that has not been written yet."""
        ...

    def buffered(self) -> int:
        """Return the number of bytes that `send` and `write` accepted and that the kernel has not taken yet."""
        ...

    def pause_reading(self) -> None:
        """Stop reading, so that the peer has to wait. Data that was already read (at most one read of the transport) is
        still delivered.
        """
        ...

    def resume_reading(self) -> None: ...

    def charge(self, messages: float = 0, events: int = 0) -> None:
        """Charge the peer's budgets for `messages` more messages and `events` events. A listener calls this in
        `on_message` for a message that costs more than most. It has no effect on a connection without budgets.
        """
        ...


class Listener(Protocol):
    """Receives the events of a connection: `on_open` comes first; `on_close` comes last and exactly once."""

    def on_open(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: bytes | str) -> None: ...

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        """The connection is over. `code` is the code that was sent if this end closed, the code that was received if
        the peer closed, and 1006 if the connection was lost.
        """
        ...

    def on_silence(self, connection: Connection) -> None:
        """No byte arrived for another silence period. A connection whose reading is paused does not count as silent."""
        ...

    def on_writable(self, connection: Connection) -> None:
        """The write buffer has drained after it was congested."""
        ...

    def on_overflow(self, connection: Connection) -> None:
        """A write was dropped because more than `max_buffered` bytes were waiting. Unless the listener closes the
        connection here, it is closed with code 1013.
        """
        ...


@runtime_checkable
class MeteredListener(Protocol):
    """A listener that takes part in the accounting of the read scheduler. For any other listener, every message counts
    against the budget, and a connection that exceeds it for too long is closed with code 1008.
    """

    @property
    def asked(self) -> int:
        """The number of messages received so far that the peer was asked for. They do not count against the message
        budget, because they are bounded in another way.
        """
        ...

    def on_excess(self, connection: Connection, reason: str) -> None:
        """The peer exceeded a limit, which `reason` describes. Unless the listener closes the connection here, it is
        closed with code 1008.
        """
        ...
