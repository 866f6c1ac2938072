"""The seam of the carrier: what a connection tells, and what it can be told.

A `Listener` is usually one object per connection (a gateway session, an SDK session, a bench client). It is
called synchronously, on the event loop, and must not block. `Connection` is what it is given, whichever
carrier runs below: our own framing on a transport, or a plain ASGI loop on a foreign server. An exception
that leaves a listener is logged and closes its connection with 1011.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Connection(Protocol):
    """One open WebSocket, seen from above."""

    @property
    def closing(self) -> bool:
        """A close was sent or received, or the connection was lost: what is sent now is dropped."""
        ...

    @property
    def congested(self) -> bool:
        """The write buffer is above its high-water mark; `on_writable` tells when it has drained."""
        ...

    @property
    def silent_periods(self) -> int:
        """Whole silence periods since the last byte arrived."""
        ...

    def send(self, message: bytes | str) -> None:
        """One message: bytes as binary, str as text. Never blocks; see `on_overflow`."""
        ...

    def write(self, frame: bytes) -> None:
        """One frame already encoded for this role: a broadcast is encoded once."""
        ...

    def ping(self, payload: bytes = b"") -> None: ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake; the peer has 5 s to answer. `on_close` then reports this code."""
        ...

    def abort(self) -> None:
        """Drop the connection now, with whatever was not yet written."""
        ...

    def buffered(self) -> int:
        """Bytes accepted by `send` and `write` that the kernel has not yet taken."""
        ...

    def pause_reading(self) -> None:
        """Let the peer wait. What was read already (at most one read of the transport) is still delivered."""
        ...

    def resume_reading(self) -> None: ...

    def charge(self, messages: float = 0, events: int = 0) -> None:
        """To be called in `on_message`, for a message that costs more than most: it counts against the peer's
        budgets as so many messages more, and so many events. Nothing happens where there are no budgets.
        """
        ...


class Listener(Protocol):
    """Whoever is told. Per connection: `on_open` first, `on_close` exactly once and last."""

    def on_open(self, connection: Connection) -> None: ...

    def on_message(self, connection: Connection, message: bytes | str) -> None: ...

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        """The connection is over: the code that was sent if this end closed, received if the peer did, 1006
        if the connection was lost.
        """
        ...

    def on_silence(self, connection: Connection) -> None:
        """Not a byte arrived for another silence period. A connection that is paused is not silent."""
        ...

    def on_writable(self, connection: Connection) -> None:
        """The write buffer has drained after it was congested."""
        ...

    def on_overflow(self, connection: Connection) -> None:
        """A write found more than `max_buffered` bytes waiting, and was dropped. Unless closed here, the
        connection is closed with 1013.
        """
        ...


@runtime_checkable
class MeteredListener(Protocol):
    """A listener that takes part. Of one that does not, every message counts, and its flood is closed with 1008."""

    @property
    def asked(self) -> int:
        """Messages so far that the peer was asked for. They are not counted, as they have another bound."""
        ...

    def on_excess(self, connection: Connection, reason: str) -> None:
        """The peer has gone beyond what is borne; `reason` says how. Unless closed here, it is closed with 1008."""
        ...
